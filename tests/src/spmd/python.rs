//! A program as Python text.

use super::program::{Collective, Group, Program};
use super::write::{Spelling, write as write_with};

/// The text, a script for `torchrun`.
pub fn write(program: &Program) -> String {
    write_with(program, &SPELLING)
}

const SPELLING: Spelling = Spelling {
    head: "import os\nimport sys\n\nimport torch\nimport torch.distributed as dist\n\n",
    helper: ["\ndef helper{i}():\n    return ", "\n\n"],
    step: ["\ndef step{i}(n):\n", "\n"],
    main: [
        "\ndef main():\n",
        "\n\nif __name__ == \"__main__\":\n    dist.init_process_group(\"gloo\")\n",
    ],
    tensor: "t = torch.ones(1)",
    asks_once: ["rank = dist.get_rank()", "world = dist.get_world_size()"],
    reads_environment: [
        "rank = int(os.environ[\"RANK\"])",
        "world = int(os.environ[\"WORLD_SIZE\"])",
    ],
    rank: "dist.get_rank()",
    environment_rank: "int(os.environ[\"RANK\"])",
    local_rank: "int(os.environ[\"LOCAL_RANK\"])",
    world: "dist.get_world_size()",
    half: "({a}) // 2",
    not: "not ({a})",
    both: "({a}) and ({b})",
    either: "({a}) or ({b})",
    switch: "\"--switch{a}\" in sys.argv",
    helper_call: "helper{a}()",
    if_: "if {a}:",
    else_: "else:",
    for_: "for {a} in range({b}):",
    end: None,
    nothing: Some("pass"),
    assign: ["{a} = {b}", "{a} = {b}"],
    remember: "{a} = {b}",
    call: "step{a}({b})",
    print: "print(\"here\")",
    return_: "return",
    break_: "break",
    continue_: "continue",
    exit: "sys.exit(0)",
    fail: "raise RuntimeError(\"failed\")",
    collective: |kind| collective(kind, ""),
    in_group: |kind, index| collective(kind, &format!("group=group{index}")),
    groups: make_groups,
    ends_with_start: true,
};

fn make_groups(program: &Program) -> Vec<String> {
    let group = |(index, group): (usize, &Group)| {
        let ranks = match group {
            Group::Ranks(ranks) => format!("{ranks:?}"),
            Group::All => "list(range(dist.get_world_size()))".to_owned(),
        };
        format!("group{index} = dist.new_group({ranks})")
    };
    program.groups.iter().enumerate().map(group).collect()
}

fn collective(kind: Collective, group: &str) -> String {
    let more = if group.is_empty() { String::new() } else { format!(", {group}") };
    match kind {
        Collective::Barrier => format!("dist.barrier({group})"),
        Collective::AllReduce => format!("dist.all_reduce(t{more})"),
        Collective::Broadcast { root } => format!("dist.broadcast(t, src={root}{more})"),
        Collective::AllGather => {
            "dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], t)".to_owned()
        }
    }
}

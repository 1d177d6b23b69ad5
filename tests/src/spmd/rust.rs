//! A program as Rust text over tch-ddp.

use super::program::{Collective, Group, Program};
use super::write::{Spelling, write as write_with};

/// The text, a `main.rs`.
pub fn write(program: &Program) -> String {
    write_with(program, &SPELLING)
}

const SPELLING: Spelling = Spelling {
    head: "use anyhow::Result;\nuse tch_ddp::{Launch, ProcessGroup};\n\n\
           fn switch(name: &str) -> bool {\n    std::env::args().any(|a| a == name)\n}\n\n",
    helper: ["fn helper{i}(group: &ProcessGroup) -> bool {\n    ", "\n}\n\n"],
    step: [
        "fn step{i}(group: &ProcessGroup, parts: &[Option<ProcessGroup>], n: i64) -> Result<()> \
         {\n",
        "    Ok(())\n}\n\n",
    ],
    main: [
        "fn main() -> Result<()> {\n    \
         let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;\n    \
         let group = &group;\n",
        "    Ok(())\n}\n",
    ],
    tensor: "let t = tch::Tensor::ones([1], (tch::Kind::Float, group.device()));",
    asks_once: ["let rank = group.rank() as i64;", "let world = group.world_size() as i64;"],
    reads_environment: [
        "let rank = group.rank() as i64;",
        "let world = group.world_size() as i64;",
    ],
    rank: "group.rank() as i64",
    environment_rank: "group.rank() as i64",
    local_rank: "group.local_rank() as i64",
    world: "group.world_size() as i64",
    half: "({a}) / 2",
    not: "!({a})",
    both: "({a}) && ({b})",
    either: "({a}) || ({b})",
    switch: "switch(\"--switch{a}\")",
    helper_call: "helper{a}(group)",
    if_: "if {a} {",
    else_: "} else {",
    for_: "for {a} in 0..{b} {",
    end: Some("}"),
    nothing: None,
    assign: ["let mut {a} = {b};", "{a} = {b};"],
    remember: "let {a} = {b};",
    call: "step{a}(group, parts, {b})?;",
    print: "println!(\"here\");",
    return_: "return Ok(());",
    break_: "break;",
    continue_: "continue;",
    exit: "std::process::exit(0);",
    fail: "anyhow::bail!(\"failed\");",
    collective: |kind| collective(kind, "group"),
    in_group: |kind, index| {
        format!("if let Some(part) = &parts[{index}] {{ {} }}", collective(kind, "part"))
    },
    groups: make_groups,
    ends_with_start: false,
};

/// A group of some ranks is there on its members alone.
fn make_groups(program: &Program) -> Vec<String> {
    let group = |group: &Group| match group {
        Group::Ranks(ranks) => format!("group.subgroup(&{ranks:?})?"),
        Group::All => "group.subgroup(&(0..group.world_size()).collect::<Vec<_>>())?".to_owned(),
    };
    let groups: Vec<String> = program.groups.iter().map(group).collect();
    vec![format!("let parts = &[{}];", groups.join(", "))]
}

fn collective(kind: Collective, group: &str) -> String {
    match kind {
        Collective::Barrier => format!("{group}.barrier()?;"),
        Collective::AllReduce => format!("{group}.all_reduce(&t)?;"),
        Collective::Broadcast { root } => format!("{group}.broadcast(&t, {root})?;"),
        Collective::AllGather => format!("{group}.all_gather(&t)?;"),
    }
}

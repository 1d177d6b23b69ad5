//! What the launcher does when all goes well: environment, lines, log files, restarts, speed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ddp_tests::launch::{Launcher, ddp_run, lines_of, shell};
use serde_json::Value;

/// Prints the variables of a launcher, one line each.
const PRINT_ENV: &str = "env | grep -E '^(RANK|LOCAL_|WORLD_|GROUP_|ROLE_|MASTER_|TORCH|OMP_)'";

fn variables(out: &str, rank: usize) -> BTreeMap<&str, &str> {
    lines_of(out, rank).into_iter().filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn ranks_get_the_variables_of_torchrun() {
    let ran = shell("-n 2 --max-restarts 1 --rdzv-id my-run", PRINT_ENV).run(5.0);
    ran.ended(0, &[]);
    let of_rank = variables(&ran.out, 1);
    let fixed = [
        ("RANK", "1"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_NAME", "default"),
        ("ROLE_RANK", "1"),
        ("ROLE_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("OMP_NUM_THREADS", "1"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("TORCHELASTIC_MAX_RESTARTS", "1"),
        ("TORCHELASTIC_RUN_ID", "my-run"),
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ];
    for (key, value) in fixed {
        assert_eq!(of_rank.get(key), Some(&value), "{key}");
    }
    assert!(of_rank["TORCHELASTIC_ERROR_FILE"].ends_with("attempt_0/1/error.json"));
    assert_ne!(of_rank["MASTER_PORT"], "0");
    assert_eq!(of_rank["MASTER_PORT"], variables(&ran.out, 0)["MASTER_PORT"]);
}

#[test]
fn one_rank_keeps_all_threads() {
    let ran = shell("", PRINT_ENV).run(5.0);
    assert!(!variables(&ran.out, 0).contains_key("OMP_NUM_THREADS"), "{}", ran.out);
}

#[test]
fn flags_may_come_from_torchruns_variables() {
    let ran = shell("", "echo $WORLD_SIZE").env("PET_NPROC_PER_NODE", "3").run(5.0);
    assert_eq!(lines_of(&ran.out, 2), ["3"]);
    let ran = ddp_run(["--nproc_per_node=2", "--no_python", "sh", "-c", "echo $RANK"]).run(5.0);
    assert_eq!(lines_of(&ran.out, 1), ["1"]);
}

#[test]
fn own_variables_differ_by_rank() {
    let args =
        "-n 2 --rank-env CUDA_VISIBLE_DEVICES={local_rank} --rank-env NAME=w{rank}of{world_size}";
    let ran = shell(args, "echo $CUDA_VISIBLE_DEVICES $NAME").run(5.0);
    assert_eq!((lines_of(&ran.out, 0), lines_of(&ran.out, 1)), (vec!["0 w0of2"], vec!["1 w1of2"]));
}

#[test]
fn python_scripts_and_modules_need_no_interpreter_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("hello.py");
    fs::write(&script, "import os, sys\nprint(sys.argv[1:], os.environ['RANK'])\n").unwrap();
    let ran = ddp_run([script.to_str().unwrap(), "--epochs", "3"]).run(10.0);
    assert_eq!(ran.out, "[rank 0] ['--epochs', '3'] 0\n", "{}", ran.err);
    let mut module = ddp_run(["-m", "hello", "-x"]);
    module.command.current_dir(folder.path());
    assert_eq!(module.run(10.0).out, "[rank 0] ['-x'] 0\n");
}

#[test]
fn streams_stay_apart_and_lines_carry_their_rank() {
    let ran = shell("-n 2", "echo out; echo err >&2; printf unfinished").run(5.0);
    assert_eq!(lines_of(&ran.out, 1), ["out", "unfinished"]);
    assert_eq!(lines_of(&ran.err, 0), ["err"]);
    let plain = shell("-n 2 --no-prefix", "echo out").run(5.0);
    assert_eq!(plain.out, "out\nout\n");
    let own = shell("-n 1", "echo out")
        .env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name}:${rank}:${local_rank}> ");
    assert_eq!(own.run(5.0).out, "<default:0:0> out\n");
}

#[test]
fn the_console_can_show_some_ranks_only() {
    let folder = tempfile::tempdir().unwrap();
    let log_dir = folder.path().display();
    let args = format!("-n 3 --local-ranks-filter 0,2 --log-dir {log_dir} --rdzv-id x");
    let ran = shell(&args, "echo $RANK").run(5.0);
    let mut shown: Vec<_> = ran.out.lines().collect();
    shown.sort_unstable();
    assert_eq!(shown, ["[rank 0] 0", "[rank 2] 2"]);
    assert_eq!(text(folder.path(), "x/attempt_0/1/stdout.log"), "1\n");
}

#[test]
fn a_relative_log_directory_holds_wherever_a_rank_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher =
        shell("--log-dir logs --rdzv-id x", "cd /; echo broken > $TORCHELASTIC_ERROR_FILE; exit 1");
    launcher.command.current_dir(folder.path());
    launcher.run(5.0).ended(1, &["its error", "| broken"]);
    assert_eq!(text(folder.path(), "logs/x/attempt_0/0/error.json"), "broken\n");
}

#[test]
fn redirects_and_tees_follow_torchruns_masks() {
    let folder = tempfile::tempdir().unwrap();
    let args = format!(
        "-n 2 --rdzv-id x --log-dir {} --redirects 0:1,1:0 --tee 0:2",
        folder.path().display()
    );
    let ran = shell(&args, "echo out; echo err >&2").run(5.0);
    assert_eq!(ran.out, "[rank 1] out\n");
    assert_eq!(lines_of(&ran.err, 0), ["err"]);
    assert_eq!(text(folder.path(), "x/attempt_0/0/stdout.log"), "out\n");
    assert_eq!(text(folder.path(), "x/attempt_0/0/stderr.log"), "err\n");
    assert!(!folder.path().join("x/attempt_0/1/stdout.log").exists());
}

fn text(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn restarts_start_all_ranks_anew_with_a_counter() {
    let folder = tempfile::tempdir().unwrap();
    let args = format!("-n 2 --max-restarts 3 --rdzv-id x --log-dir {}", folder.path().display());
    // Restarts 0 and 1 fail on different ranks, restart 2 succeeds.
    let script = "echo restart $TORCHELASTIC_RESTART_COUNT; \
                  [ $TORCHELASTIC_RESTART_COUNT = $RANK ] && exit 9; \
                  [ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 60";
    let ran = shell(&args, script).run(10.0);
    ran.ended(0, &["rank 0 failed first", "rank 1 failed first", "restart 2 of 3"]);
    assert_eq!(lines_of(&ran.out, 0), ["restart 0", "restart 1", "restart 2"]);
    assert_eq!(text(folder.path(), "x/attempt_1/1/stdout.log"), "restart 1\n");
    let state: Value = serde_json::from_str(&text(folder.path(), "x/run.json")).unwrap();
    assert_eq!(state["status"], "succeeded");
    assert_eq!(state["restarts"], 2);
    assert_eq!(state["world_size"], 2);
    let causes: Vec<_> =
        state["root_causes"].as_array().unwrap().iter().map(|cause| &cause["rank"]).collect();
    assert_eq!(causes, [0, 1]);
    assert_eq!(state["root_causes"][0]["how"]["exit"], 9);
    assert_eq!(state["root_causes"][1]["restart"], 1);
    assert_eq!(state["root_causes"][1]["last_lines"][0], "restart 1");
}

#[test]
fn a_crash_loop_backs_off_and_ends() {
    let ran = shell("-n 1 --max-restarts 2", "exit 3").run(10.0);
    ran.ended(3, &["restart 1 of 2 in 0.5 s", "restart 2 of 2 in 1 s", "restart 2 of 2\n"]);
    assert!(ran.took >= Duration::from_millis(1500), "{:?}", ran.took);
    let ran = shell("-n 1 --max-restarts 5 --max-restart-delay 0", "exit 3").run(3.0);
    ran.ended(3, &["restart 5 of 5"]);
}

#[test]
fn the_state_of_a_running_run_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let args = format!("-n 2 --rdzv-id x --log-dir {}", folder.path().display());
    let mut started = shell(&args, "sleep 60").start();
    let state_file = folder.path().join("x/run.json");
    let state =
        || -> Option<Value> { serde_json::from_str(&fs::read_to_string(&state_file).ok()?).ok() };
    started.until("the state", |_| state().is_some_and(|state| state["status"] == "running"));
    assert_eq!(state().unwrap()["launcher_pid"], started.pid());
    started.signal("TERM");
    started.wait(5.0).ended(143, &[]);
    assert_eq!(state().unwrap()["status"], "ended");
    assert_eq!(state().unwrap()["exit_code"], 143);
}

#[test]
fn user_signals_reach_the_ranks_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let up = folder.path().join("up");
    let script = format!(
        "trap 'echo saved; wait; exit 0' USR1; (sleep 0.5; echo worker lives) & echo > {}; \
         while :; do sleep 0.05; done",
        up.display()
    );
    let mut started = shell("-n 1", &script).start();
    started.until("the rank", |_| up.exists());
    started.signal("USR1");
    let ran = started.wait(5.0);
    ran.ended(0, &[]);
    assert_eq!(lines_of(&ran.out, 0), ["saved", "worker lives"]);
}

#[test]
fn sixty_four_ranks_start_and_end_within_a_second() {
    let run = |_| {
        let ran = ddp_run(["--nproc-per-node", "64", "--", "true"]).run(20.0);
        ran.ended(0, &[]);
        ran.took
    };
    // Other programs may use the cores too: one good run shows what the launcher can do.
    let quick = (0..6).map(run).any(|took| took < Duration::from_secs(1));
    assert!(quick, "six times more than a second");
}

#[test]
fn chatty_ranks_arrive_whole_and_in_order_at_speed() {
    const RANKS: usize = 64;
    const LINES: usize = 8000;
    let script = format!("seq -f \"$RANK line %.0f of a rank that has much to say\" {LINES}");
    let run = |_| {
        let ran = shell(&format!("-n {RANKS}"), &script).run(60.0);
        ran.ended(0, &[]);
        let mut next = [1; RANKS];
        for line in ran.out.lines() {
            let (rank, rest) = line.strip_prefix("[rank ").unwrap().split_once("] ").unwrap();
            let number = &mut next[rank.parse::<usize>().unwrap()];
            assert_eq!(rest, format!("{rank} line {number} of a rank that has much to say"));
            *number += 1;
        }
        assert_eq!(next, [LINES + 1; RANKS]);
        (RANKS * LINES) as f64 / ran.took.as_secs_f64()
    };
    // Other programs may use the cores too: one good run shows what the launcher can do.
    let quick = (0..6).map(run).any(|lines_per_s| lines_per_s >= 100_000.0);
    assert!(quick, "six times less than 100,000 lines/s");
}

#[test]
fn wrong_usage_says_what_is_expected() {
    for (args, words) in [
        ("-n 0 -- true", "expected a number of at least 1"),
        ("--nnodes 1:4 -- true", "use torchrun for a range"),
        ("--nnodes 2 -- true", "needs --node-rank"),
        ("-n gpu -- true", "no GPU found"),
        ("--redirects 7 -- true", "expected 0 (none)"),
        ("--signals-to-handle SIGKILL -- true", "SIGKILL is no signal that can be handled"),
        ("--rank-env X -- true", "expected KEY=PATTERN"),
        ("", "PROGRAM"),
    ] {
        let mut launcher = ddp_run(args.split_whitespace());
        if words.contains("GPU") {
            launcher = launcher.env("CUDA_VISIBLE_DEVICES", "");
        }
        launcher.run(2.0).ended(2, &[words]);
    }
}

#[test]
fn cargo_ddp_run_builds_and_launches_a_package() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = "[package]\nname = 'probe'\nversion = '0.1.0'\nedition = '2021'\n[workspace]\n";
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    let program = "fn main() { let told = |key| std::env::var(key).unwrap(); \
                   println!(\"{} {:?}\", told(\"RANK\"), std::env::args().nth(2)); \
                   println!(\"{}\", told(\"LD_LIBRARY_PATH\")) }";
    fs::write(folder.path().join("src/main.rs"), program).unwrap();
    // What tch's build script does: the program would not find these libraries by itself.
    let build = "fn main() { println!(\"cargo:rustc-link-search=native=/opt/libtorch/lib\") }";
    fs::write(folder.path().join("build.rs"), build).unwrap();
    let cargo_ddp_run = ddp_tests::binaries::ddp_run().with_file_name("cargo-ddp-run");
    let root = ddp_tests::repository::root();
    let built = Command::new("cargo")
        .args(["build", "-q", "--bin", "cargo-ddp-run"])
        .current_dir(root)
        .status();
    assert!(built.unwrap().success());
    let mut command = Command::new(cargo_ddp_run);
    command.args(["ddp-run", "-n", "2", "--", "--epochs", "3"]).current_dir(folder.path());
    command.env_remove("CARGO_TARGET_DIR").env_remove("LD_LIBRARY_PATH");
    let ran = Launcher::new(&command).run(60.0);
    ran.ended(0, &[]);
    assert_eq!(lines_of(&ran.out, 1), ["1 Some(\"3\")", "/opt/libtorch/lib"]);
    fs::write(folder.path().join("src/main.rs"), "fn main() { oops }").unwrap();
    let mut command = Command::new(ddp_tests::binaries::ddp_run().with_file_name("cargo-ddp-run"));
    command.args(["ddp-run"]).current_dir(folder.path());
    Launcher::new(&command).run(60.0).ended(101, &["oops", "does not build"]);
}

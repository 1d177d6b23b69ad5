//! The fault table of the launcher: whatever goes wrong ends within its bound, names its cause,
//! and leaves no process and no locked port.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use ddp_tests::launch::{self, Launcher, ddp_run, is_root, kill, port_is_free, some_port};

/// As `launch::shell`, with a port that must be free again when the launcher has ended.
fn shell(args: &str, script: &str) -> Launcher {
    launch::shell(args, script).with_port()
}

/// A program that waits, and what it starts itself waits too.
const WAIT: &str = "sleep 60 & sleep 60";

#[test]
fn exit_code_3_ends_the_others_and_is_passed_on() {
    let script = format!("[ $RANK = 1 ] && {{ echo all is lost >&2; exit 3; }}; {WAIT}");
    let ran = shell("-n 3", &script).run(5.0);
    ran.ended(3, &["rank 1 failed first: exit code 3", "last lines of rank 1", "| all is lost"]);
}

#[test]
fn the_last_twenty_lines_of_the_root_cause_are_shown() {
    let ran = shell("-n 1", "seq 100 130; exit 3").run(5.0);
    ran.ended(3, &["rank 0 failed: exit code 3", "  | 111\n", "  | 130\n"]);
    assert!(!ran.err.contains("| 110"), "{}", ran.err);
}

/// Run as a rank by the next test: the harness catches the panic and exits with code 101.
#[test]
fn child_that_panics() {
    assert!(std::env::var_os("DDP_TEST_PANIC").is_none(), "the loss is not a number");
}

#[test]
fn a_panic_is_an_exit_code_with_its_message() {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let args = ["-n", "2", own, "--exact", "child_that_panics", "--nocapture"];
    let ran = ddp_run(args).env("DDP_TEST_PANIC", "1").run(5.0);
    ran.ended(101, &["failed first: exit code 101", "the loss is not a number"]);
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let ran = shell("-n 2", &format!("[ $RANK = 0 ] && kill -KILL $$; {WAIT}")).run(5.0);
    ran.ended(137, &["rank 0 failed first: killed by SIGKILL", "full: see dmesg"]);
}

#[test]
fn a_stopped_rank_fails_after_its_timeout() {
    let script = format!("[ $RANK = 1 ] && kill -STOP $$; {WAIT}");
    let ran = shell("-n 2 --stop-timeout 0.3 --shutdown-timeout 5", &script).run(5.0);
    ran.ended(147, &["rank 1 (pid", "is stopped by a signal", "rank 1 failed first: stopped"]);
}

#[test]
fn a_stopped_rank_does_not_keep_a_failed_run_alive() {
    let script = "[ $RANK = 1 ] && kill -STOP $$; sleep 0.3; exit 4";
    shell("-n 2", script).run(5.0).ended(4, &["rank 0 failed first: exit code 4"]);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "trap '' TERM; cd {}; echo > $RANK; [ $RANK = 0 ] || while :; do sleep 1; done; \
         until [ -e 1 ] && [ -e 2 ]; do sleep 0.05; done; exit 5",
        folder.path().display()
    );
    let ran = shell("-n 3 --shutdown-timeout 0.5", &script).run(5.0);
    ran.ended(5, &["not all ranks ended within 0.5 s: killing them"]);
    assert!(ran.took > Duration::from_millis(500));
}

#[test]
fn signals_to_the_launcher_end_the_ranks() {
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "trap 'echo {signal} > {0}/heard-$RANK; exit 0' {signal}; echo > {0}/up-$RANK; \
             sleep 60 & wait",
            folder.path().display()
        );
        let mut started = shell("-n 2", &script).start();
        let up = |rank| folder.path().join(format!("up-{rank}")).exists();
        started.until("both ranks", |_| up(0) && up(1));
        started.signal(signal);
        started.wait(10.0).ended(code, &[&format!("SIG{signal}: passed on to the ranks")]);
        for rank in 0..2 {
            let heard = fs::read_to_string(folder.path().join(format!("heard-{rank}"))).unwrap();
            assert_eq!(heard.trim(), signal);
        }
    }
}

#[test]
fn a_second_ctrl_c_kills() {
    let folder = tempfile::tempdir().unwrap();
    let up = folder.path().join("up");
    let script = format!("trap '' INT; echo > {}; while :; do sleep 1; done", up.display());
    let mut started = shell("-n 1", &script).start();
    started.until("the rank", |_| up.exists());
    started.signal("INT");
    thread::sleep(Duration::from_millis(100));
    started.signal("INT");
    started.wait(5.0).ended(130, &["SIGINT again: killing the ranks"]);
}

#[test]
fn a_killed_launcher_takes_everything_with_it() {
    let port = some_port();
    let script = "sleep 60 & python3 -c 'import time; time.sleep(60)'";
    let mut started = shell(&format!("-n 3 --master-port {port}"), script).start();
    // Launcher, guard, and three shells with two children each.
    started.until("all processes", |processes| processes.len() >= 11);
    started.signal("KILL");
    let ran = started.wait(5.0);
    assert_eq!(ran.code, None);
    ran.left_nothing();
    port_is_free(port);
}

#[test]
fn what_ranks_leave_behind_is_ended() {
    // One child stays in the rank's group, one leaves it for a session of its own.
    let ran = shell("-n 2", "sleep 60 & setsid sleep 60 & sleep 0.2").run(10.0);
    ran.ended(0, &["left processes behind", "sleep"]);
}

#[test]
fn strangers_in_other_groups_are_not_touched() {
    let mut stranger = Command::new("sleep").arg("60").spawn().unwrap();
    shell("-n 2", "exit 1").run(5.0).ended(1, &[]);
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn programs_that_cannot_start_are_named_at_once() {
    ddp_run(["-n", "4", "no-such-program"])
        .run(1.0)
        .ended(127, &["no-such-program is not on PATH"]);
    ddp_run(["-n", "4", "/etc/passwd"]).run(1.0).ended(126, &["may not be executed"]);
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad");
    fs::write(&bad, "#!/no/such/interpreter\n").unwrap();
    Command::new("chmod").arg("+x").arg(&bad).status().unwrap();
    let ran = ddp_run(["-n", "2", bad.to_str().unwrap()]).run(2.0);
    ran.ended(127, &["cannot start", "No such file"]);
}

#[test]
fn a_taken_port_is_named_with_its_holder() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let ran = shell(&format!("-n 2 --master-port {port}"), "true").run(2.0);
    let words = format!("port {port} of this machine is taken by process {}", std::process::id());
    ran.ended(1, &[&words, "--master-port"]);
}

#[test]
fn the_port_is_held_for_rank_0_and_free_afterwards() {
    let port = some_port();
    let script = "[ $RANK = 0 ] || exec sleep 60; exec python3 -c '
import os, socket
port = int(os.environ[\"MASTER_PORT\"])
try:
    socket.socket().bind((\"\", port))
except OSError:
    print(\"held\")
rank_0 = socket.socket()
rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
rank_0.bind((\"\", port))
rank_0.listen()
socket.create_connection((\"127.0.0.1\", port))
print(\"served\")
raise SystemExit(6)'";
    let ran = shell(&format!("-n 2 --max-restarts 1 --master-port {port}"), script).run(10.0);
    ran.ended(6, &["restart 1 of 1"]);
    assert_eq!(launch::lines_of(&ran.out, 0), ["held", "served", "held", "served"]);
    port_is_free(port);
}

#[test]
fn a_missing_node_is_named() {
    let port = some_port();
    let args = format!(
        "--nnodes 3 --node-rank 0 --master-addr 127.0.0.1 --master-port {port} --join-timeout 0.5"
    );
    let ran = shell(&args, "true").run(3.0);
    ran.ended(1, &["1 of 3 nodes have joined within 0.5 s; missing: node 1, 2", "firewall"]);
    port_is_free(port);
    let args = args.replace("--node-rank 0", "--node-rank 1");
    let words = [&format!("cannot reach node 0 at 127.0.0.1:{port}"), "--node-rank 0 running"];
    shell(&args, "true").run(3.0).ended(1, &words);
}

#[test]
fn a_read_only_log_directory_is_named_before_anything_starts() {
    for log_dir in ["/proc/logs", "/dev/null/logs"] {
        let ran = shell(&format!("-n 2 --log-dir {log_dir}"), "echo started").run(2.0);
        ran.ended(1, &[&format!("the log directory {log_dir} cannot be used")]);
        assert_eq!(ran.out, "");
    }
}

/// Runs a launcher with a log directory of 64 KiB, in a mount namespace of its own.
fn with_full_disk(fill_first: bool, script: &str) -> Option<Launcher> {
    if !is_root()
        || !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success())
    {
        eprintln!("skipped: a small disk needs root and unshare");
        return None;
    }
    let folder = tempfile::tempdir().unwrap().keep();
    let fill = if fill_first { "cat /dev/zero > $0/zero;" } else { "" };
    let setup = format!(
        "mount -t tmpfs -o size=64k,nr_inodes=12 none $0; {fill} {inodes} exec \"$@\"",
        inodes = if fill_first { "for i in 1 2 3 4 5 6 7 8 9 10; do : > $0/$i; done;" } else { "" },
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &setup]).arg(&folder);
    command.arg(ddp_tests::binaries::ddp_run()).args(["-n", "1", "--log-dir"]).arg(&folder);
    command.args(["--", "sh", "-c", script]);
    Some(Launcher::new(&command))
}

#[test]
fn a_full_log_directory_at_the_start_is_named() {
    if let Some(launcher) = with_full_disk(true, "echo started") {
        launcher.run(5.0).ended(1, &["No space left", "--log-dir"]);
    }
}

#[test]
fn a_log_directory_that_fills_up_does_not_end_the_run() {
    let script = "head -c 300000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo the end";
    if let Some(launcher) = with_full_disk(false, script) {
        let ran = launcher.run(10.0);
        ran.ended(0, &["No space left", "the run goes on without this log"]);
        assert_eq!(ran.out.lines().count(), 3001);
        assert!(ran.out.ends_with("the end\n"));
    }
}

#[test]
fn the_earliest_error_file_is_the_root_cause() {
    // Rank 1 reports its error first but takes longer to end than rank 0, which only suffers.
    let script = r#"
        if [ $RANK = 1 ]; then
            printf '%s' '{"message": {"message": "ValueError: bad batch", "extraInfo":
                {"py_callstack": "Traceback\nValueError: bad batch", "timestamp": "1"}}}' \
                > $TORCHELASTIC_ERROR_FILE
            sleep 60; exit 1
        fi
        until [ -s $(dirname $TORCHELASTIC_ERROR_FILE)/../1/error.json ]; do sleep 0.1; done
        sleep 0.1; echo the other rank is silent >&2; exit 7"#;
    let ran = shell("-n 2", script).run(10.0);
    ran.ended(
        1,
        &[
            "rank 1 failed first: reported an error",
            "  | ValueError: bad batch",
            "then rank 0: exit code 7",
        ],
    );
}

#[test]
fn who_lost_a_connection_is_not_blamed_for_it() {
    // Rank 1 takes a second from closing its connections to its end, which rank 0 does not wait
    // for.
    let script = "[ $RANK = 1 ] && { sleep 1; exit 9; }; \
                  echo 'RuntimeError: Connection closed by peer [127.0.0.1]:63209' >&2; exit 1";
    let ran = shell("-n 2", script).run(5.0);
    ran.ended(9, &["rank 1 failed first: exit code 9", "then rank 0: exit code 1"]);
    // A rank that never ends is not waited for.
    let script = script.replace("sleep 1;", "sleep 60;");
    let ran = shell("-n 2", &script).run(6.0);
    ran.ended(1, &["rank 0 failed first: exit code 1"]);
}

#[test]
fn a_closed_console_does_not_end_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let mut command = Command::new("sh");
    let script = format!(
        "{} -n 2 -- sh -c 'seq 20000; echo > {}' | head -n 1",
        ddp_tests::binaries::ddp_run().display(),
        done.display()
    );
    command.args(["-c", &script]);
    let ran = Launcher::new(&command).run(10.0);
    assert_eq!(ran.out.lines().count(), 1);
    assert!(done.exists());
    ran.left_nothing();
}

#[test]
fn nohup_keeps_the_launcher_alive() {
    let folder = tempfile::tempdir().unwrap();
    let up = folder.path().join("up");
    let mut command = Command::new("nohup");
    command.arg(ddp_tests::binaries::ddp_run()).args(["-n", "1", "--", "sh", "-c"]);
    command.arg(format!("echo > {}; sleep 0.5; echo through", up.display()));
    let mut started = Launcher::new(&command).start();
    started.until("the rank", |_| up.exists());
    kill("HUP", started.pid());
    let ran = started.wait(5.0);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "[rank 0] through\n"));
}

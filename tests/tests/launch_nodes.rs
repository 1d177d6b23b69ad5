//! Several launchers that work together: nodes by flags, Slurm, Open MPI, pods, torchrun
//! outside; on the loopback interface and, as root, between two network namespaces.

use std::process::Command;
use std::time::Duration;

use ddp_tests::launch::{
    Ran, Started, TwoMachines, ddp_run, lines_of, port_is_free, shell, some_port,
};

/// Prints what tells a rank who it is.
const WHO: &str = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE \
                   group $GROUP_RANK/$GROUP_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT";

/// Starts one launcher per node; `args` go to all, `{node}` is replaced in them.
fn nodes(n_nodes: usize, port: u16, args: &str, script: &str) -> Vec<Started> {
    let start = |node: usize| {
        let args = format!(
            "--nnodes {n_nodes} --node-rank {node} --master-addr 127.0.0.1 --master-port {port} {}",
            args.replace("{node}", &node.to_string())
        );
        shell(&args, script).start()
    };
    // Node 0 last: the others have to wait for it.
    (0..n_nodes).rev().map(start).collect::<Vec<_>>().into_iter().rev().collect()
}

#[track_caller]
fn all(started: Vec<Started>, limit_s: f64) -> Vec<Ran> {
    started.into_iter().map(|started| started.wait(limit_s)).collect()
}

#[test]
fn nodes_number_their_ranks_in_order() {
    let port = some_port();
    let mut started = nodes(1, port, "-n 2", WHO);
    started.clear();
    let place = format!("at 127.0.0.1:{port}");
    let start = |node: usize, n_local: usize| {
        let args = format!(
            "--nnodes 3 --node-rank {node} --master-addr 127.0.0.1 --master-port {port} \
             -n {n_local}"
        );
        shell(&args, WHO).start()
    };
    // Nodes may have different numbers of ranks.
    let ran = all(vec![start(2, 1), start(0, 2), start(1, 3)], 10.0);
    for ran in &ran {
        ran.ended(0, &[]);
    }
    assert_eq!(lines_of(&ran[1].out, 1), [format!("1/6 local 1/2 group 0/3 {place}")]);
    assert_eq!(lines_of(&ran[2].out, 4), [format!("4/6 local 2/3 group 1/3 {place}")]);
    assert_eq!(lines_of(&ran[0].out, 5), [format!("5/6 local 0/1 group 2/3 {place}")]);
    port_is_free(port);
}

#[test]
fn a_failure_on_one_node_ends_all_with_its_exit_code() {
    let script = "[ $RANK = 3 ] && { sleep 0.3; echo lost >&2; exit 6; }; sleep 60";
    for ran in all(nodes(2, some_port(), "-n 2", script), 10.0) {
        ran.ended(6, &["rank 3 failed first: exit code 6", "| lost"]);
    }
}

#[test]
fn nodes_restart_together() {
    let script = "echo try $TORCHELASTIC_RESTART_COUNT; \
                  [ $TORCHELASTIC_RESTART_COUNT$RANK = 02 ] && exit 6; \
                  [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 60";
    let ran = all(nodes(2, some_port(), "-n 2 --max-restarts 1", script), 10.0);
    for (node, ran) in ran.iter().enumerate() {
        ran.ended(0, &[]);
        assert_eq!(lines_of(&ran.out, 2 * node), ["try 0", "try 1"]);
    }
    assert!(ran[0].err.contains("rank 2 failed first"), "{}", ran[0].err);
}

#[test]
fn a_launcher_that_is_killed_ends_the_other_nodes() {
    for victim in [0, 1] {
        let mut started = nodes(2, some_port(), "-n 2 --max-restarts 5", "sleep 60");
        for started in &mut started {
            started.until("its ranks", |processes| processes.len() >= 4);
        }
        let mut started: Vec<_> = started.into_iter().map(Some).collect();
        let killed = started[victim].take().unwrap();
        killed.signal("KILL");
        let words = format!("the launcher of node {victim} (");
        started[1 - victim].take().unwrap().wait(10.0).ended(1, &[&words, "is gone"]);
        killed.wait(5.0).left_nothing();
    }
}

#[test]
fn ctrl_c_on_any_node_ends_all() {
    for node in [0, 1] {
        // A shell that is just starting a program may miss the signal: it must be gone by then.
        let mut started = nodes(2, some_port(), "-n 1 --max-restarts 5", "exec sleep 60");
        for started in &mut started {
            started.until("its rank", |processes| processes.len() >= 3);
        }
        started[node].signal("INT");
        for ran in all(started, 10.0) {
            ran.ended(130, &["SIGINT"]);
        }
    }
}

#[test]
fn launchers_that_do_not_fit_are_sent_away() {
    let port = some_port();
    let flags = format!("--master-addr 127.0.0.1 --master-port {port} --join-timeout 4");
    let node_0 = shell(&format!("--nnodes 2 --node-rank 0 --rdzv-id a {flags}"), "true").start();
    let misfits = [
        ("--nnodes 3 --node-rank 2", "world sizes do not match: it was told of 3 nodes"),
        ("--nnodes 2 --node-rank 1 --rdzv-id b", "two runs share an address and port"),
    ];
    for (args, words) in misfits {
        shell(&format!("{args} {flags}"), "true").run(4.0).ended(2, &[words]);
    }
    shell(&format!("--nnodes 2 --node-rank 1 {flags}"), "true").run(5.0).ended(0, &[]);
    node_0.wait(8.0).ended(0, &["sent away node 2", "node 1 ("]);
}

#[test]
fn a_program_missing_on_one_node_is_told_on_all() {
    let port = some_port();
    let start = |node: usize, program: &str| {
        let args = format!(
            "--nnodes 2 --node-rank {node} --master-addr 127.0.0.1 --master-port {port} {program}"
        );
        ddp_run(args.split_whitespace()).start()
    };
    for (first, second) in [("true", "no-such-program"), ("no-such-program", "true")] {
        for ran in all(vec![start(0, first), start(1, second)], 10.0) {
            ran.ended(127, &["no-such-program is not on PATH"]);
        }
    }
}

#[test]
fn a_port_that_is_no_launchers_is_told() {
    // What a launcher meets that comes when rank 0 has taken the port over.
    let store = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = store.local_addr().unwrap().port();
    std::thread::spawn(move || drop(store.accept()));
    let args = format!("--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {port}");
    shell(&args, "true").run(3.0).ended(1, &["the run did not begin", "is another run using"]);
}

#[test]
fn strangers_on_the_port_do_no_harm() {
    use std::io::Write;
    let port = some_port();
    let flags = format!("--nnodes 2 --master-addr 127.0.0.1 --master-port {port}");
    let node_0 = shell(&format!("{flags} --node-rank 0"), "true").start();
    let mut silent = None;
    for text in ["GET / HTTP/1.0\r\n\r\n", ""] {
        let end = std::time::Instant::now() + Duration::from_secs(5);
        let mut stranger = loop {
            match std::net::TcpStream::connect(("127.0.0.1", port)) {
                Ok(stranger) => break stranger,
                Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
            }
        };
        stranger.write_all(text.as_bytes()).unwrap();
        silent = Some(stranger);
    }
    shell(&format!("{flags} --node-rank 1"), "true").run(5.0).ended(0, &[]);
    node_0.wait(5.0).ended(0, &[]);
    drop(silent);
}

/// Runs one launcher per task of a scheduler, each with the variables of its task.
fn tasks(n_tasks: usize, args: &str, env: impl Fn(usize) -> String, script: &str) -> Vec<Ran> {
    let start = |task: usize| shell(args, script).envs(&env(task)).start();
    let started: Vec<_> = (0..n_tasks).map(start).collect();
    all(started, 10.0)
}

fn slurm(task: usize, n_tasks: usize, job: u32) -> String {
    format!(
        "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_NTASKS={n_tasks} \
         SLURM_PROCID={task} SLURM_LOCALID={task} SLURM_NODEID=0 SLURM_STEP_NODELIST=node7 \
         SLURM_STEP_TASKS_PER_NODE={n_tasks}"
    )
}

#[test]
fn srun_with_one_launcher_per_rank() {
    let job = std::process::id();
    let ran = tasks(3, "", |task| slurm(task, 3, job), WHO);
    let port = 15000 + job % 17000;
    for (task, ran) in ran.iter().enumerate() {
        ran.ended(0, &[]);
        let who = format!("{task}/3 local {task}/3 group 0/1 at 127.0.0.1:{port}");
        assert_eq!(lines_of(&ran.out, task), [who]);
    }
}

#[test]
fn srun_with_one_launcher_per_node() {
    let env = |node: usize| {
        format!(
            "SLURM_JOB_ID=5 SLURM_STEP_ID=1 SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_PROCID={node} \
             SLURM_LOCALID=0 SLURM_NODEID={node} SLURM_STEP_NODELIST=localhost,gpu[02-03]"
        )
    };
    let args = format!("-n 2 --master-port {}", some_port());
    let ran = tasks(2, &args, env, WHO);
    assert!(lines_of(&ran[1].out, 3)[0].starts_with("3/4 local 1/2 group 1/2 at localhost:"));
}

#[test]
fn a_failing_task_ends_the_whole_step() {
    let job = std::process::id() + 7;
    let script = "[ $RANK = 2 ] && exit 4; sleep 60";
    for ran in tasks(3, "", |task| slurm(task, 3, job), script) {
        ran.ended(4, &["rank 2 failed first"]);
    }
}

#[test]
fn mpirun_with_one_launcher_per_rank() {
    let port = some_port();
    let env = |task: usize| {
        format!(
            "OMPI_COMM_WORLD_RANK={task} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK={task} \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT={port}"
        )
    };
    let ran = tasks(2, "", env, WHO);
    let who = format!("1/2 local 1/2 group 0/1 at 127.0.0.1:{port}");
    assert_eq!(lines_of(&ran[1].out, 1), [who]);
}

#[test]
fn pods_of_a_pytorchjob_are_nodes() {
    let port = some_port();
    let env =
        |pod: usize| format!("RANK={pod} WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT={port}");
    let ran = tasks(2, "-n 2", env, WHO);
    let who = format!("2/4 local 0/2 group 1/2 at localhost:{port}");
    assert_eq!(lines_of(&ran[1].out, 2), [who]);
    // Newer operators set torchrun's own variables, and WORLD_SIZE counts ranks.
    let env = |pod: usize| {
        format!(
            "PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_NODE_RANK={pod} PET_MASTER_ADDR=localhost \
             PET_MASTER_PORT={port} RANK={pod} WORLD_SIZE=4 MASTER_ADDR=x MASTER_PORT=1"
        )
    };
    let ran = tasks(2, "", env, WHO);
    let who = format!("2/4 local 0/2 group 1/2 at localhost:{port}");
    assert_eq!(lines_of(&ran[1].out, 2), [who]);
}

#[test]
fn under_torchrun_the_environment_is_passed_on() {
    let env = "TORCHELASTIC_RUN_ID=outer RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 \
               GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=far MASTER_PORT=77 \
               TORCHELASTIC_USE_AGENT_STORE=True";
    let script = format!("{WHO}; echo $TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RUN_ID");
    let ran = shell("", &script).envs(env).run(5.0);
    assert_eq!(
        lines_of(&ran.out, 5),
        ["5/8 local 1/4 group 1/2 at far:77", "True outer"],
        "{}",
        ran.err
    );
}

#[test]
fn an_error_file_of_an_earlier_rank_is_not_shown() {
    // torchrun outside gives each attempt of ours the same file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("error.json");
    std::fs::write(&file, "an old error").unwrap();
    let env = format!(
        "TORCHELASTIC_RUN_ID=outer RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 TORCHELASTIC_ERROR_FILE={}",
        file.display()
    );
    let ran = shell("", "exit 7").envs(&env).run(5.0);
    ran.ended(7, &["rank 0 failed: exit code 7"]);
    assert!(!ran.err.contains("an old error"), "{}", ran.err);
    let ran = shell("", "echo a new error > $TORCHELASTIC_ERROR_FILE; exit 7").envs(&env).run(5.0);
    ran.ended(7, &["its error", "| a new error"]);
}

#[test]
fn two_machines_run_together_and_a_cut_cable_is_noticed() {
    let Some(machines) = TwoMachines::new() else { return };
    let launcher = |node, args: &str, script: &str| {
        machines.launcher(node, args, &["sh", "-c", script].map(str::to_owned))
    };
    let start = |node, args: &str, script: &str| launcher(node, args, script).start();
    let ran = all(vec![start(0, "-n 2", WHO), start(1, "-n 2", WHO)], 10.0);
    assert_eq!(
        lines_of(&ran[1].out, 3),
        ["3/4 local 1/2 group 1/2 at 10.87.0.1:29500"],
        "{}",
        ran[1].err
    );
    // No message says that a cable is cut: only silence does.
    let args = "-n 1 --node-timeout 1.5";
    let mut started = vec![start(0, args, "sleep 60"), start(1, args, "sleep 60")];
    for started in &mut started {
        started.until("its rank", |processes| processes.len() >= 3);
    }
    let cut = ["-n", &machines.names[1], "link", "set", &machines.interface(1), "down"];
    assert!(Command::new("ip").args(cut).status().unwrap().success());
    for ran in all(started, 15.0) {
        ran.ended(1, &["is gone: nothing was heard for"]);
    }
    // An address that nobody has: named within the bound.
    let lost = launcher(1, "-n 1 --join-timeout 1", "true").run(5.0);
    lost.ended(1, &["cannot reach node 0 at 10.87.0.1:29500"]);
}

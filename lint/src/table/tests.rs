//! What the tables promise: their rows agree with themselves, and names that rules rely on mean
//! what they should.

use super::*;

#[test]
fn built_in_rows_parse_and_point_to_rows() {
    let table = Table::built_in();
    for row in table.rows() {
        let name = row.name.unwrap();
        if let Some(other) = row.same_as {
            let below = format!("{other}.");
            let is_module = || table.by_name.keys().any(|key| key.starts_with(&below));
            assert!(
                table.get(other).is_some() || is_module(),
                "{name} is the same as {other}, unknown"
            );
        }
        assert_eq!(
            row.role == Role::Collective || row.has(Flag::Hidden),
            row.kind.is_some(),
            "{name}: a collective, and no other row, names its kind"
        );
    }
}

#[test]
fn methods_are_found_through_bases_and_other_spellings() {
    let table = Table::built_in();
    let find =
        |of: &str, method: &str| table.method(Name::new(of), Name::new(method)).map(|row| row.role);
    assert_eq!(find("torch.nn.parallel.DistributedDataParallel", "no_sync"), Some(Role::NoSync));
    assert_eq!(find("torch.nn.DataParallel", "state_dict"), Some(Role::StateDict));
    assert_eq!(find("torch.nn.Linear", "no_sync"), None);
}

#[test]
fn keys_hold_alternatives() {
    let expanded = |key| alternatives(key).join(" ");
    assert_eq!(expanded("a.b"), "a.b");
    assert_eq!(expanded("a.{b,c}"), "a.b a.c");
    assert_eq!(expanded("{a,b}.x.{c,d}_"), "a.x.c_ a.x.d_ b.x.c_ b.x.d_");
    assert_eq!(expanded("a.{b"), "a.{b");
}

#[test]
fn respelling_a_module_respells_what_is_below_it() {
    let mut table = Table::default();
    let rows = r#"
        "far.net" = { flags = ["class"] }
        "far.net.save" = { role = "save", params = ["path"], path = "path" }
        "near" = { same-as = "far" }
        "nearer.{a,b}" = { same-as = "near.net" }
        "loop" = { same-as = "loop.x" }
    "#;
    table.add(rows).unwrap();
    for name in ["near.net.save", "nearer.a.save", "nearer.b.save"] {
        assert_eq!(table.get_str(name).unwrap().role, Role::Save, "{name}");
    }
    assert!(table.is_a(Name::new("nearer.a"), Name::new("near.net")));
    assert!(table.get_str("nearby.net.save").is_none());
    assert!(table.get_str("loop.y").is_none());
}

#[test]
fn a_member_of_a_base_is_a_member_of_the_class() {
    let table = Table::built_in();
    let name = "torch.nn.parallel.DistributedDataParallel.state_dict";
    assert_eq!(table.get_str(name).map(|row| row.role), Some(Role::StateDict));
    assert!(table.get_str("torch.nn.parallel.state_dict").is_none());
}

/// The built-in tables' keys as they stand in the files, in order, with their sections.
fn written_keys() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut keys = Vec::new();
    for (file, text) in BUILT_IN {
        let mut section = "";
        for line in text.lines() {
            if line.starts_with("# ---") {
                section = line;
            } else if let Some((key, _)) = line.strip_prefix('"').and_then(|l| l.split_once('"')) {
                keys.push((*file, section, key));
            }
        }
    }
    keys
}

#[test]
fn no_name_has_two_rows() {
    let mut seen: FxHashMap<String, &str> = FxHashMap::default();
    for (file, _, key) in written_keys() {
        for name in alternatives(key) {
            let good = name.split('.').all(|part| !part.is_empty() && !part.contains(' '));
            assert!(good && !name.contains(['{', '}']), "{file}: `{name}` of `{key}` is no name");
            if let Some(other) = seen.insert(name.clone(), file) {
                panic!("`{name}` has a row in {other} and another in {file}");
            }
        }
    }
    assert_eq!(seen.len(), Table::built_in().rows().count());
}

#[test]
fn tables_are_sorted_within_their_sections_and_fit_the_screen() {
    let order = |key: &str| key.replace('{', "").to_lowercase();
    for pair in written_keys().windows(2) {
        let [(file, section, a), (_, next, b)] = pair else { unreachable!() };
        let sorted = section != next || order(a) <= order(b);
        assert!(sorted, "{file}: `{b}` comes after `{a}` in {section}");
    }
    for (file, text) in BUILT_IN {
        let long = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "{file} has a line of more than 100 columns");
    }
}

#[test]
fn types_and_bases_of_rows_are_classes_with_rows() {
    let table = Table::built_in();
    for row in table.rows() {
        let name = row.name.unwrap();
        for class in row.returns.iter().chain(&row.bases) {
            let known = table.get(*class).is_some_and(Row::is_class);
            assert!(known, "{name} names `{class}`, which is no class of the tables");
        }
        assert!(row.bases.is_empty() || row.is_class(), "{name} has bases but is no class");
    }
}

#[test]
fn rows_name_parameters_that_they_have() {
    for row in Table::built_in().rows() {
        let name = row.name.unwrap();
        let role_of = [("input", row.input), ("output", row.output), ("path", row.path)];
        for (field, parameter) in role_of {
            let Some(parameter) = parameter else { continue };
            let has = row.params.contains(&parameter) || field == "path" && parameter == "self";
            assert!(has, "{name}: {field} `{parameter}` is none of its parameters");
        }
        for (i, parameter) in row.params.iter().enumerate() {
            assert!(!row.params[..i].contains(parameter), "{name} has `{parameter}` twice");
        }
        let talks = row.role == Role::Collective || row.has(Flag::Hidden);
        assert!(talks || row.input.is_none() && row.output.is_none(), "{name} sends nothing");
        let both = row.has(Flag::OutOfPlace) && row.output.is_some();
        assert!(!both, "{name}: a result is either returned or written into an argument");
    }
}

#[test]
fn wrappers_and_layers_are_modules() {
    let table = Table::built_in();
    let modules = ["torch.nn.Module", "tch.nn.ModuleT"].map(Name::new);
    let wanted = [Role::WrapDdp, Role::WrapDp, Role::Layer, Role::Loss, Role::Sequential];
    let parts = table.rows().filter(|row| row.is_class() && wanted.contains(&row.role));
    for row in parts {
        let name = row.name.unwrap();
        let is_module = modules.iter().any(|&module| table.is_a(name, module));
        let is_recurrent = table.is_a(name, Name::new("tch.nn.RNN"));
        assert!(is_module || is_recurrent, "{name} does not derive from a module");
    }
}

#[test]
fn spellings_of_one_thing_lead_to_one_row() {
    let table = Table::built_in();
    let ddp = "torch.nn.parallel.DistributedDataParallel";
    let same = [
        ("torch.nn.parallel.distributed.DistributedDataParallel", ddp),
        ("torch.nn.parallel.DistributedDataParallelCPU", ddp),
        ("torch.nn.parallel.data_parallel.DataParallel", "torch.nn.parallel.DataParallel"),
        ("torch.nn.modules.batchnorm.BatchNorm2d", "torch.nn.BatchNorm2d"),
        ("torch.nn.parameter.Parameter", "torch.nn.Parameter"),
        ("torch.distributed.distributed_c10d.all_reduce", "torch.distributed.all_reduce"),
        ("torch.distributed.nn.all_gather", "torch.distributed.nn.functional.all_gather"),
        ("torch.multiprocessing.Process", "multiprocessing.Process"),
        ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"),
        ("torch.optim.lr_scheduler._LRScheduler", "torch.optim.lr_scheduler.LRScheduler"),
        ("pytorch_lightning.Trainer", "lightning.pytorch.Trainer"),
        (
            "pytorch_lightning.utilities.rank_zero_only",
            "lightning.pytorch.utilities.rank_zero.rank_zero_only",
        ),
        ("lightning_fabric.Fabric", "lightning.fabric.Fabric"),
        ("tqdm.auto.tqdm", "tqdm.tqdm"),
        ("tqdm.notebook.trange", "tqdm.trange"),
        ("builtins.print", "print"),
        ("tch.utils.manual_seed", "tch.manual_seed"),
        ("fs_err.create_dir_all", "std.fs.create_dir_all"),
    ];
    for (spelling, canonical) in same {
        let name = table.get_str(spelling).and_then(|row| row.name);
        assert_eq!(name.as_deref(), Some(canonical), "{spelling}");
    }
}

const ROLES: &[(&str, Role)] = &[
    ("torch.distributed.init_process_group", Role::InitGroup),
    ("torch.distributed.get_rank", Role::Rank),
    ("torch.distributed.is_torchelastic_launched", Role::IsDistributed),
    ("torch.distributed.new_group", Role::NewGroup),
    ("torch.distributed.irecv", Role::Collective),
    ("torch.distributed.algorithms.Join", Role::Join),
    ("torch.nn.SyncBatchNorm.convert_sync_batchnorm", Role::ConvertSyncBatchNorm),
    ("torch.nn.parallel.data_parallel", Role::FunctionalDp),
    ("torch.nn.functional.cross_entropy", Role::Loss),
    ("torch.nn.Module.register_buffer", Role::RegisterBuffer),
    ("torch.optim.swa_utils.AveragedModel", Role::Copy),
    ("torch.optim.lr_scheduler.ReduceLROnPlateau.step", Role::SchedulerStep),
    ("torch.cuda.amp.GradScaler.unscale_", Role::Unscale),
    ("torch.cuda.empty_cache", Role::CurrentDevice),
    ("torch.cuda.set_device", Role::SetDevice),
    ("torch.utils.checkpoint.checkpoint", Role::Checkpoint),
    ("torch.utils.data.WeightedRandomSampler", Role::OtherSampler),
    ("torch.autograd.grad", Role::AutogradGrad),
    ("torchvision.datasets.CIFAR100", Role::Dataset),
    ("torchvision.utils.save_image", Role::WriteFile),
    ("os.makedirs", Role::MakeDirectory),
    ("os.environ.get", Role::EnvRead),
    ("shutil.rmtree", Role::RemovePath),
    ("sys.exit", Role::Exit),
    ("functools.partial", Role::Partial),
    ("argparse.ArgumentParser.parse_known_args", Role::ParseArguments),
    ("urllib.request.urlretrieve", Role::Download),
    ("tarfile.TarFile.extractall", Role::Unpack),
    ("accelerate.Accelerator.main_process_first", Role::MainFirst),
    ("accelerate.Accelerator.is_main_process", Role::IsMain),
    ("accelerate.Accelerator.state.process_index", Role::Rank),
    ("mpi4py.MPI.COMM_WORLD.bcast", Role::Collective),
    ("mmcv.runner.get_dist_info", Role::RankAndWorldSize),
    ("mmcv.runner.master_only", Role::MainOnly),
    ("detectron2.engine.launch", Role::Spawn),
    ("timm.utils.NativeScaler.__call__", Role::FusedStep),
    ("apex.parallel.DistributedDataParallel", Role::WrapDdp),
    ("deepspeed.comm.barrier", Role::Collective),
    ("wandb.init", Role::Tracker),
    ("wandb.run.log", Role::TrackerLog),
    ("tch.nn.linear", Role::Layer),
    ("tch.nn.Adam.build", Role::Optimizer),
    ("tch.nn.Optimizer.backward_step_clip", Role::FusedStep),
    ("tch.nn.Path.f_kaiming_uniform", Role::RegisterParameter),
    ("tch.nn.Path.zeros_no_train", Role::RegisterBuffer),
    ("tch.nn.Entry.or_zeros_no_train", Role::RegisterParameter),
    ("tch.Device.cuda_if_available", Role::FirstDevice),
    ("tch.Tensor.f_double_value", Role::HostRead),
    ("tch.Tensor.apply_t", Role::ApplyModule),
    ("tch.Tensor.randn", Role::Random),
    ("tch.CModule.load", Role::Load),
    ("tch_ddp.Ddp.run", Role::Forward),
    ("tch_ddp.Ddp.save", Role::Save),
    ("tch_ddp.ProcessGroup.all_reduce_async", Role::Collective),
    ("tch_ddp.main_only!", Role::MainOnly),
    ("println!", Role::Print),
    ("log.info!", Role::Log),
    ("std.env.var", Role::EnvRead),
    ("std.process.exit", Role::Exit),
    ("anyhow.bail!", Role::Raise),
    ("indicatif.ProgressBar.new", Role::Progress),
    ("tensorboard_rs.summary_writer.SummaryWriter.new", Role::Tracker),
    ("rand.thread_rng", Role::Random),
];

#[test]
fn names_have_the_roles_that_rules_rely_on() {
    let table = Table::built_in();
    for &(name, role) in ROLES {
        assert_eq!(table.get_str(name).map(|row| row.role), Some(role), "{name}");
    }
    let unknown = ["torch.gather", "torch.distributed", "indicatif.ProgressBar.hidden"];
    for name in unknown {
        let role = table.get_str(name).map(|row| row.role);
        assert!(matches!(role, None | Some(Role::Plain)), "{name} is {role:?}");
    }
}

#[test]
fn collectives_say_what_they_send_and_where_the_result_goes() {
    let table = Table::built_in();
    let check = |name: &str, kind, input: Option<&str>, output: Option<&str>| {
        let row = table.get_str(name).unwrap();
        let ends = (row.kind, row.input.as_deref(), row.output.as_deref());
        assert_eq!(ends, (Some(kind), input, output), "{name}");
    };
    let (tensor, list) = (Some("tensor"), Some("tensor_list"));
    check("torch.distributed.all_reduce", CollectiveKind::AllReduce, tensor, tensor);
    check("torch.distributed.all_gather", CollectiveKind::AllGather, tensor, list);
    check("torch.distributed.nn.all_reduce", CollectiveKind::AllReduce, tensor, None);
    check("torch.distributed.barrier", CollectiveKind::Barrier, None, None);
    check("tch_ddp.ProcessGroup.broadcast", CollectiveKind::Broadcast, tensor, tensor);
    check("accelerate.Accelerator.gather", CollectiveKind::AllGather, tensor, None);
    let hidden = ["torch.distributed.optim.ZeroRedundancyOptimizer.step", "tch_ddp.Ddp.load"];
    for name in hidden.into_iter().chain(["lightning.pytorch.Trainer.save_checkpoint"]) {
        assert!(table.get_str(name).unwrap().has(Flag::Hidden), "{name}");
    }
}

#[test]
fn parameters_stand_in_the_order_of_their_positions() {
    let table = Table::built_in();
    let params = |name: &str| {
        let row = table.get_str(name).unwrap();
        row.params.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        params("torch.utils.data.DistributedSampler"),
        "dataset num_replicas rank shuffle seed drop_last"
    );
    let loader = params("torch.utils.data.DataLoader");
    assert!(loader.starts_with("dataset batch_size shuffle sampler batch_sampler num_workers"));
    let group = params("torch.distributed.init_process_group");
    assert!(group.starts_with("backend init_method timeout world_size rank store"));
    assert!(params("torch.load").starts_with("f map_location"));
    assert_eq!(params("os.makedirs"), "name mode exist_ok");
    assert_eq!(params("torch.nn.Module.load_state_dict"), "state_dict strict assign");
    assert_eq!(params("tch_ddp.Ddp.new"), "model vs group options");
}

#[test]
fn layers_tell_their_buffers_and_parameters() {
    let table = Table::built_in();
    let flags = |name: &str| {
        let row = table.get_str(name).unwrap();
        (row.has(Flag::Buffers), row.has(Flag::NoParameters), row.has(Flag::Random))
    };
    assert_eq!(flags("torch.nn.BatchNorm1d"), (true, false, false));
    assert_eq!(flags("torch.nn.Linear"), (false, false, false));
    assert_eq!(flags("torch.nn.Dropout"), (false, true, true));
    assert_eq!(flags("torch.nn.CrossEntropyLoss"), (false, true, false));
    assert_eq!(flags("tch.nn.batch_norm2d"), (true, false, false));
    assert_eq!(flags("torchvision.models.resnet18"), (true, false, false));
    let adagrad = table.get_str("torch.optim.Adagrad").unwrap();
    assert!(adagrad.has(Flag::EagerState));
    assert!(!table.get_str("torch.optim.Adam").unwrap().has(Flag::EagerState));
}

#[test]
fn a_wrapper_knows_its_own_attributes() {
    let table = Table::built_in();
    let of = Name::new("torch.nn.parallel.DistributedDataParallel");
    for name in ["module", "device_ids", "require_backward_grad_sync", "training", "to"] {
        assert!(table.method(of, Name::new(name)).is_some(), "{name}");
    }
    for name in ["backbone", "loss", "bert"] {
        assert!(table.method(of, Name::new(name)).is_none(), "{name}");
    }
}

#[test]
fn builders_and_methods_in_place_give_their_receiver() {
    let table = Table::built_in();
    for name in ["tch_ddp.DistributedSampler.shuffle", "torch.Tensor.add_", "*.unwrap"] {
        let row = table.get_str(name).unwrap();
        assert!(row.gives_receiver && row.returns.is_none(), "{name}");
    }
}

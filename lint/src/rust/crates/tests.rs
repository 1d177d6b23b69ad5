//! Crates, targets and modules of Rust projects, on small sets of texts.

use super::{
    Crates, Manifest, RustFile, TchVersion, mentions_tch, module_path_by_layout, tch_version,
};
use crate::model::FileId;
use crate::project::Resolution;

/// A project of texts, files in the order given.
struct Files(Vec<(&'static str, &'static str)>);

impl Files {
    fn crates(&self) -> Crates {
        let (manifests, files): (Vec<_>, Vec<_>) =
            self.0.iter().enumerate().partition(|(_, (path, _))| path.ends_with("Cargo.toml"));
        let files: Vec<RustFile<'_>> = files
            .iter()
            .map(|(index, (path, text))| RustFile { id: FileId(*index as u32), path, text })
            .collect();
        let manifests: Vec<Manifest<'_>> =
            manifests.iter().map(|(_, (path, text))| Manifest { path, text }).collect();
        Crates::new(&files, &manifests)
    }

    fn id(&self, path: &str) -> FileId {
        let index = self.0.iter().position(|(own, _)| *own == path);
        FileId(index.unwrap_or_else(|| panic!("no {path}")) as u32)
    }

    fn path(&self, id: FileId) -> &str {
        self.0[id.0 as usize].0
    }

    /// `path` of the file that a dotted path leads to.
    fn resolve(&self, from: &str, entry: &str, dotted: &str) -> Option<&str> {
        let entry = (!entry.is_empty()).then(|| self.id(entry));
        match self.crates().resolve(self.id(from), entry, dotted) {
            Resolution::File(file) => Some(self.path(file)),
            Resolution::Package | Resolution::External => None,
        }
    }

    fn described(&self) -> Vec<String> {
        let crates = self.crates();
        let describe = |krate: &super::Crate| {
            let files: Vec<_> = krate.files.iter().map(|&file| self.path(file)).collect();
            format!("{:?} {}: {}", krate.kind, krate.name, files.join(" "))
        };
        crates.crates().iter().map(describe).collect()
    }
}

const PACKAGE: (&str, &str) = ("Cargo.toml", "[package]\nname = \"my-net\"\n");

#[test]
fn targets_are_found_where_cargo_finds_them() {
    let files = Files(vec![
        PACKAGE,
        ("src/lib.rs", "pub mod model;"),
        ("src/main.rs", "fn main() {}"),
        ("src/model.rs", ""),
        ("src/bin/train.rs", "fn main() {}"),
        ("src/bin/eval/main.rs", "mod data;"),
        ("src/bin/eval/data.rs", ""),
        ("examples/mnist.rs", ""),
        ("examples/gan/main.rs", "mod layers;"),
        ("examples/gan/layers.rs", ""),
        ("tests/all.rs", "mod common;"),
        ("tests/common/mod.rs", ""),
        ("benches/speed.rs", ""),
        ("build.rs", ""),
    ]);
    assert_eq!(
        files.described(),
        [
            "Library my_net: src/lib.rs src/model.rs",
            "Binary my_net: src/main.rs",
            "Binary eval: src/bin/eval/main.rs src/bin/eval/data.rs",
            "Binary train: src/bin/train.rs",
            "Example gan: examples/gan/main.rs examples/gan/layers.rs",
            "Example mnist: examples/mnist.rs",
            "Test all: tests/all.rs tests/common/mod.rs",
            "Bench speed: benches/speed.rs",
            "BuildScript build: build.rs",
        ]
    );
    let entries: Vec<_> =
        files.crates().entries().into_iter().map(|file| files.path(file).to_owned()).collect();
    assert_eq!(
        entries,
        [
            "src/main.rs",
            "src/bin/train.rs",
            "src/bin/eval/main.rs",
            "examples/mnist.rs",
            "examples/gan/main.rs",
            "tests/all.rs",
        ]
    );
}

#[test]
fn targets_may_be_named_and_placed_by_hand() {
    let manifest = r#"
        [package]
        name = "net"
        autobins = false
        autoexamples = false
        build = "make.rs"
        [lib]
        name = "core"
        path = "lib/all.rs"
        [[bin]]
        name = "one"
        path = "one/start.rs"
        [[bin]]
        name = "two"
        [[bin]]
        name = "net"
        [[example]]
        name = "x"
        path = "examples/y.rs"
    "#;
    let files = Files(vec![
        ("a/Cargo.toml", manifest),
        ("a/lib/all.rs", ""),
        ("a/one/start.rs", ""),
        ("a/src/bin/two.rs", ""),
        ("a/src/bin/three.rs", ""),
        ("a/src/main.rs", ""),
        ("a/examples/y.rs", ""),
        ("a/examples/z.rs", ""),
        ("a/make.rs", ""),
    ]);
    let described = files.described();
    assert_eq!(
        described[..6],
        [
            "Library core: a/lib/all.rs a/src/bin/three.rs",
            "Binary one: a/one/start.rs",
            "Binary two: a/src/bin/two.rs",
            "Binary net: a/src/main.rs",
            "Example x: a/examples/y.rs",
            "BuildScript build: a/make.rs",
        ]
    );
}

#[test]
fn modules_are_found_as_rustc_finds_them() {
    let files = Files(vec![
        PACKAGE,
        (
            "src/main.rs",
            "/// mod no;\nmod data; pub(crate) mod model; mod inner { mod deep; } // mod no;
             #[path = \"../other/x.rs\"] mod odd; #[cfg(test)] mod checks; mod r#type;",
        ),
        ("src/data.rs", "pub mod loader; mod part { pub mod one; }"),
        ("src/data/loader.rs", ""),
        ("src/data/part/one.rs", ""),
        ("src/model/mod.rs", "mod layer;"),
        ("src/model/layer.rs", ""),
        ("src/inner/deep.rs", ""),
        ("other/x.rs", "mod y;"),
        ("other/y.rs", ""),
        ("src/checks.rs", "mod more;"),
        ("src/checks/more.rs", ""),
        ("src/type.rs", ""),
        ("src/no.rs", ""),
    ]);
    let crates = files.crates();
    let paths = [
        ("src/main.rs", "crate"),
        ("src/data.rs", "crate.data"),
        ("src/data/loader.rs", "crate.data.loader"),
        ("src/data/part/one.rs", "crate.data.part.one"),
        ("src/model/mod.rs", "crate.model"),
        ("src/model/layer.rs", "crate.model.layer"),
        ("src/inner/deep.rs", "crate.inner.deep"),
        ("other/x.rs", "crate.odd"),
        ("other/y.rs", "crate.odd.y"),
        ("src/checks.rs", "crate.checks"),
        ("src/type.rs", "crate.type"),
    ];
    for (path, expected) in paths {
        assert_eq!(crates.module_path(files.id(path)), expected, "{path}");
        assert_eq!(files.resolve("src/main.rs", "", expected), Some(path));
    }
    for (path, test_only) in
        [("src/checks.rs", true), ("src/checks/more.rs", true), ("src/data.rs", false)]
    {
        assert_eq!(crates.is_test_only(files.id(path)), test_only, "{path}");
    }
    assert_eq!(files.resolve("src/main.rs", "", "crate.inner"), Some("src/main.rs"));
    assert_eq!(files.resolve("src/main.rs", "", "crate.data.part"), Some("src/data.rs"));
}

#[test]
fn a_module_that_declares_its_parent_ends() {
    let files = Files(vec![
        PACKAGE,
        ("src/main.rs", "mod a;"),
        ("src/a.rs", "#[path = \"main.rs\"] mod b; #[path = \"a.rs\"] mod c;"),
    ]);
    assert_eq!(files.described(), ["Binary my_net: src/main.rs src/a.rs"]);
}

#[test]
fn a_binary_names_the_library_of_its_package() {
    let files = Files(vec![
        PACKAGE,
        ("src/lib.rs", "pub mod model; pub mod data;"),
        ("src/model.rs", ""),
        ("src/data.rs", ""),
        ("src/main.rs", "mod data;"),
    ]);
    let from_main = |dotted| files.resolve("src/main.rs", "src/main.rs", dotted);
    assert_eq!(from_main("my_net.model"), Some("src/model.rs"));
    assert_eq!(from_main("my_net"), Some("src/lib.rs"));
    assert_eq!(from_main("crate"), Some("src/main.rs"));
    assert_eq!(from_main("crate.model"), None);
    assert_eq!(from_main("tch.nn"), None);
    assert_eq!(from_main("data"), Some("src/data.rs"));
    // Shared files belong to the crate of the entry.
    assert_eq!(files.resolve("src/data.rs", "src/main.rs", "crate"), Some("src/main.rs"));
    assert_eq!(files.resolve("src/data.rs", "", "crate"), Some("src/lib.rs"));
    assert_eq!(files.resolve("src/model.rs", "src/main.rs", "crate"), Some("src/lib.rs"));
    assert_eq!(files.resolve("src/model.rs", "src/main.rs", "my_net.data"), None);
}

#[test]
fn what_follows_the_module_is_told() {
    let files =
        Files(vec![PACKAGE, ("src/main.rs", "mod data;"), ("src/data.rs", "enum Mode { Train }")]);
    let crates = files.crates();
    let main = files.id("src/main.rs");
    let data = files.id("src/data.rs");
    let prefix = |dotted| crates.resolve_prefix(main, None, dotted);
    assert_eq!(prefix("crate.data.Mode.Train"), Some((data, "Mode.Train")));
    assert_eq!(prefix("crate.Other"), Some((main, "Other")));
    assert_eq!(prefix("crate"), Some((main, "")));
    assert_eq!(prefix("tch.nn"), None);
}

#[test]
fn crates_of_a_workspace_name_each_other() {
    let files = Files(vec![
        (
            "Cargo.toml",
            "[workspace]\nmembers = [\"*\"]\n[workspace.dependencies]\nmodels = { path \
                 = \"models\", package = \"my-models\" }",
        ),
        (
            "app/Cargo.toml",
            "[package]\nname = \"app\"\n[dependencies]\nmodels.workspace = true\ntch \
                 = \"0.26\"\n[target.'cfg(unix)'.dependencies]\ntools = { path = \"../tools\" }",
        ),
        ("app/src/main.rs", "fn main() {}"),
        (
            "models/Cargo.toml",
            "[package]\nname = \"my-models\"\n[dependencies]\nold = { package = \"tools\", path \
                 = \"../tools\" }",
        ),
        ("models/src/lib.rs", "pub mod unet;"),
        ("models/src/unet.rs", ""),
        ("tools/Cargo.toml", "[package]\nname = \"tools\"\n"),
        ("tools/src/lib.rs", ""),
    ]);
    let from_app = |dotted| files.resolve("app/src/main.rs", "app/src/main.rs", dotted);
    assert_eq!(from_app("models.unet"), Some("models/src/unet.rs"));
    assert_eq!(from_app("my_models.unet"), None);
    assert_eq!(from_app("tools"), Some("tools/src/lib.rs"));
    let from_unet = |dotted| files.resolve("models/src/unet.rs", "app/src/main.rs", dotted);
    assert_eq!(from_unet("old"), Some("tools/src/lib.rs"));
    assert_eq!(from_unet("crate"), Some("models/src/lib.rs"));
    assert_eq!(files.resolve("tools/src/lib.rs", "", "models.unet"), None);
}

#[test]
fn lone_files_are_crates_of_their_own() {
    let files = Files(vec![
        ("train.rs", "mod data; fn main() {}"),
        ("data.rs", "mod part;"),
        ("data/part.rs", ""),
        ("other.rs", "pub fn f() { fn main() {} }"),
    ]);
    assert_eq!(
        files.described(),
        ["Lone train: train.rs data.rs data/part.rs", "Lone other: other.rs"]
    );
    assert_eq!(files.crates().entries(), [files.id("train.rs")]);
    assert_eq!(files.resolve("data.rs", "train.rs", "crate.data.part"), Some("data/part.rs"));
    assert_eq!(files.resolve("other.rs", "", "train"), None);
}

#[test]
fn files_that_nothing_declares_have_the_place_of_their_layout() {
    let files = Files(vec![
        PACKAGE,
        ("src/lib.rs", "cfg_if! { if #[cfg(x)] { mod a; } } my_modules!(c);"),
        ("src/a.rs", ""),
        ("src/c.rs", ""),
    ]);
    assert_eq!(files.described(), ["Library my_net: src/lib.rs src/a.rs src/c.rs"]);
    assert_eq!(files.crates().module_path(files.id("src/c.rs")), "crate.c");
    assert_eq!(files.resolve("src/lib.rs", "", "crate.c"), Some("src/c.rs"));
}

#[test]
fn broken_files_and_manifests_are_read_as_far_as_possible() {
    let files = Files(vec![
        PACKAGE,
        ("sub/Cargo.toml", "[package\n"),
        ("src/main.rs", "fn ( { mod data;"),
        ("src/data.rs", "\"mod"),
    ]);
    assert_eq!(files.described(), ["Binary my_net: src/main.rs src/data.rs"]);
}

#[test]
fn crates_without_tch_are_left_out_unless_connected() {
    let files = Files(vec![
        (
            "app/Cargo.toml",
            "[package]\nname = \"app\"\n[dependencies]\ntools = { path = \"../tools\" }",
        ),
        ("app/src/main.rs", "use tch::nn; mod plain;"),
        ("app/src/plain.rs", ""),
        ("tools/Cargo.toml", "[package]\nname = \"tools\"\n"),
        ("tools/src/lib.rs", ""),
        ("web/Cargo.toml", "[package]\nname = \"web\"\n"),
        ("web/src/main.rs", "fn main() {}"),
        ("lone.rs", "fn main() {}"),
        ("lone_tch.rs", "fn main() { tch::manual_seed(1) }"),
    ]);
    let crates = files.crates();
    let relevant =
        files.0.iter().map(|(path, _)| *path).filter(|path| crates.is_relevant(files.id(path)));
    assert_eq!(
        relevant.collect::<Vec<_>>(),
        ["app/src/main.rs", "app/src/plain.rs", "tools/src/lib.rs", "lone_tch.rs"]
    );
}

#[test]
fn tch_is_a_word() {
    assert!(mentions_tch("use tch::nn;"));
    assert!(mentions_tch("use {tch_ddp, x};"));
    assert!(mentions_tch("tch"));
    assert!(!mentions_tch("match batch { pitch => patch_tch, tchx, tch_ddpx, 1tch }"));
}

#[test]
fn layout_names_modules() {
    let paths = [
        ("src/main.rs", "crate"),
        ("src/lib.rs", "crate"),
        ("src/data.rs", "crate.data"),
        ("app/src/data/mod.rs", "crate.data"),
        ("src/data/loader.rs", "crate.data.loader"),
        ("src/bin/train.rs", "crate"),
        ("src/bin/train/main.rs", "crate"),
        ("src/bin/train/data.rs", "crate.data"),
        ("examples/mnist.rs", "crate"),
        ("examples/mnist/main.rs", "crate"),
        ("examples/mnist/data.rs", "crate.data"),
        ("train.rs", "crate"),
    ];
    for (path, expected) in paths {
        assert_eq!(module_path_by_layout(path), expected, "{path}");
    }
}

#[test]
fn versions_of_tch() {
    let version = |major, minor| Some(TchVersion { major, minor });
    let toml = "[dependencies]\ntch = \"0.24\"\n";
    assert_eq!(tch_version([toml]), version(0, 24));
    assert_eq!(tch_version(["[dependencies.tch]\nversion = \"=0.26.0\"\n"]), version(0, 26));
    assert_eq!(tch_version(["[dev-dependencies]\ntch = \">= 0.20, <0.25\"\n"]), version(0, 20));
    assert_eq!(
        tch_version(["[workspace.dependencies]\ntch = { version = \"^0.18.1\" }\n"]),
        version(0, 18)
    );
    assert_eq!(
        tch_version([
            "[target.'cfg(unix)'.dependencies]\nt = { package = \"tch\", version = \"0.17\" }\n"
        ]),
        version(0, 17)
    );
    assert_eq!(tch_version([toml, "[dependencies]\ntch = \"0.26\"\n"]), version(0, 26));
    let lock = "[[package]]\nname = \"tch\"\nversion = \"0.22.0\"\n[[package]]\nname = \"x\"\n\
         version = \"1.0.0\"\n";
    assert_eq!(tch_version([toml, lock]), version(0, 22));
    assert_eq!(tch_version(["[dependencies]\ntch = { path = \"../tch-rs\" }\n"]), None);
    assert_eq!(tch_version(["[dependencies]\ntch = \"*\"\n"]), None);
    assert_eq!(tch_version(["[dependencies"]), None);
    assert_eq!(tch_version([]), None);
}

/// The pairs stand in tch's change log.
#[test]
fn versions_of_tch_bind_versions_of_torch() {
    let pairs = [
        ((0, 26), (2, 13)),
        ((0, 22), (2, 9)),
        ((0, 18), (2, 5)),
        ((0, 14), (2, 1)),
        ((0, 11), (2, 0)),
        ((0, 9), (1, 13)),
        ((0, 8), (1, 12)),
        ((0, 7), (1, 11)),
        ((0, 5), (1, 9)),
        ((0, 4), (1, 8)),
    ];
    for ((major, minor), torch) in pairs {
        assert_eq!(TchVersion { major, minor }.torch(), Some(torch), "{major}.{minor}");
    }
    assert_eq!(TchVersion { major: 0, minor: 1 }.torch(), None);
}

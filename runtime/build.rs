//! Compiles the C++ shim against the libtorch that torch-sys found, and tells dependants (through
//! `DEP_TCH_DDP_LIBDIR`) where its libraries are.

use std::env;
use std::path::{Path, PathBuf};

const TORCH_VERSION: &str = "2.13.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/ddp_shim.cc");
    println!("cargo:rerun-if-changed=src/ddp_shim.h");
    println!("cargo:rerun-if-changed=src/gloo_stubs");
    if env::var_os("CARGO_FEATURE_DOC_ONLY").is_some() {
        return;
    }
    if let Err(message) = build() {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let libdir = libtorch_libdir()?;
    let include = include_dir(&libdir)?;
    check_version(&include)?;
    println!("cargo:libdir={}", libdir.display());
    // Link arguments stop at the package that prints them: this serves the examples here.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libdir.display());
    println!("cargo:rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    let mut shim = cc::Build::new();
    let has_nccl = env::var_os("CARGO_FEATURE_NCCL").is_some();
    if has_nccl {
        for folder in nccl_includes(&libdir)? {
            shim.include(folder);
        }
        shim.define("USE_C10D_NCCL", None);
    }
    shim.cpp(true)
        .pic(true)
        .warnings(false)
        .opt_level(1)
        // libtorch's headers make tens of megabytes of it.
        .debug(false)
        .std(if has_nccl { "c++20" } else { "c++17" })
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .include("src/gloo_stubs")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("src/ddp_shim.cc");
    shim.try_compile("tch_ddp_shim").map_err(|e| format!("the C++ shim does not compile: {e}"))?;
    // A test reads its symbols.
    let out = env::var("OUT_DIR").map_err(|error| error.to_string())?;
    println!("cargo:shim={out}/libtch_ddp_shim.a");
    Ok(())
}

/// The folder with `libtorch_cpu.so`, as torch-sys decided it.
fn libtorch_libdir() -> Result<PathBuf, String> {
    let libdir = env::var_os("DEP_TCH_LIBTORCH_LIB")
        .ok_or("torch-sys did not say where libtorch is; run `cargo x setup` or set LIBTORCH")?;
    let libdir = PathBuf::from(libdir);
    if libdir.join("libtorch_cpu.so").exists() || libdir.join("libtorch_cpu.dylib").exists() {
        return Ok(libdir);
    }
    Err(format!(
        "there is no libtorch in `{}`; run `cargo x setup`, or set LIBTORCH to the folder of \
         libtorch {TORCH_VERSION} or of a Python torch {TORCH_VERSION}",
        libdir.display()
    ))
}

fn include_dir(libdir: &Path) -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    let root = match env::var_os("LIBTORCH_INCLUDE") {
        Some(root) => PathBuf::from(root),
        None => libdir.parent().unwrap_or(libdir).to_owned(),
    };
    let include = root.join("include");
    let header = include.join("torch/csrc/distributed/c10d/reducer.hpp");
    if header.exists() {
        return Ok(include);
    }
    Err(format!(
        "this libtorch has no c10d headers (`{}` is missing); run `cargo x setup`, or set \
         LIBTORCH to one built with distributed support",
        header.display()
    ))
}

/// Where the headers of NCCL and CUDA are: beside a Python torch (PyPI packages), in
/// `NCCL_INCLUDE` (paths separated by `:`), or in CUDA's usual folder.
fn nccl_includes(libdir: &Path) -> Result<Vec<PathBuf>, String> {
    println!("cargo:rerun-if-env-changed=NCCL_INCLUDE");
    if !libdir.join("libtorch_cuda.so").exists() {
        return Err(format!(
            "feature `nccl` needs a libtorch with CUDA, but `{}` has no libtorch_cuda.so",
            libdir.display()
        ));
    }
    let mut folders: Vec<PathBuf> = env::var_os("NCCL_INCLUDE")
        .map(|paths| env::split_paths(&paths).collect())
        .unwrap_or_default();
    // `.libtorch` is a link; the packages lie beside what it leads to.
    let real = libdir.canonicalize().unwrap_or_else(|_| libdir.to_owned());
    if let Some(packages) = real.ancestors().nth(2) {
        for package in ["nccl", "cu13", "cu12"] {
            folders.push(packages.join("nvidia").join(package).join("include"));
            folders.push(packages.join("nvidia").join(package).join("include/cccl"));
        }
    }
    folders.push(PathBuf::from("/usr/local/cuda/include"));
    folders.retain(|folder| folder.is_dir());
    for header in ["nccl.h", "cuda_runtime_api.h", "crt/host_config.h", "nv/target"] {
        if !folders.iter().any(|folder| folder.join(header).exists()) {
            return Err(format!(
                "feature `nccl` needs the header `{header}`; run `cargo x setup --nccl`, or name \
                 the folders of NCCL's and CUDA's headers in NCCL_INCLUDE"
            ));
        }
    }
    Ok(folders)
}

/// The Reducer's constructor differs between releases, so a near miss would fail obscurely.
fn check_version(include: &Path) -> Result<(), String> {
    let header = include.join("torch/headeronly/version.h");
    let text = std::fs::read_to_string(&header).unwrap_or_default();
    let part = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0u32)
    };
    let (major, minor) = (part("TORCH_VERSION_MAJOR "), part("TORCH_VERSION_MINOR "));
    let found = format!("{major}.{minor}");
    if TORCH_VERSION.starts_with(&format!("{found}.")) {
        return Ok(());
    }
    Err(format!(
        "libtorch {found} is at `{}`, but {TORCH_VERSION} is needed; run `cargo x setup`, or point \
         LIBTORCH to {TORCH_VERSION}",
        include.display()
    ))
}

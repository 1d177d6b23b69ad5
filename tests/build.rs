//! Link arguments stop at the package that prints them, so these tests, like every program that
//! uses tch-ddp, say themselves where libtorch is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(libdir) = std::env::var("DEP_TCH_DDP_LIBDIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libdir}");
        println!("cargo:rustc-env=TCH_DDP_LIBDIR={libdir}");
    }
    if let Ok(shim) = std::env::var("DEP_TCH_DDP_SHIM") {
        println!("cargo:rustc-env=TCH_DDP_SHIM={shim}");
    }
}

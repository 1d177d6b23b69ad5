//! Link arguments stop at the package that prints them, so these tests, like every program that
//! uses tch-ddp, say themselves where libtorch is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(libdir) = std::env::var("DEP_TCH_DDP_LIBDIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libdir}");
    }
}

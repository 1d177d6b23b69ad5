//! Names that a project's imports find outside of it, whatever its own files are called.

/// Modules of the standard library: `sys.stdlib_module_names` of Python 3.11, and those that
/// other versions have.
#[rustfmt::skip]
const STANDARD: &[&str] = &[
    "abc", "aifc", "annotationlib", "antigravity", "argparse", "array", "ast", "asynchat",
    "asyncio", "asyncore", "atexit", "audioop", "base64", "bdb", "binascii", "bisect", "builtins",
    "bz2", "cProfile", "calendar", "cgi", "cgitb", "chunk", "cmath", "cmd", "code", "codecs",
    "codeop", "collections", "colorsys", "compileall", "compression", "concurrent", "configparser",
    "contextlib", "contextvars", "copy", "copyreg", "crypt", "csv", "ctypes", "curses",
    "dataclasses", "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest", "email",
    "encodings", "ensurepip", "enum", "errno", "faulthandler", "fcntl", "filecmp", "fileinput",
    "fnmatch", "fractions", "ftplib", "functools", "gc", "genericpath", "getopt", "getpass",
    "gettext", "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http",
    "idlelib", "imaplib", "imghdr", "imp", "importlib", "inspect", "io", "ipaddress", "itertools",
    "json", "keyword", "lib2to3", "linecache", "locale", "logging", "lzma", "mailbox", "mailcap",
    "marshal", "math", "mimetypes", "mmap", "modulefinder", "msilib", "msvcrt", "multiprocessing",
    "netrc", "nis", "nntplib", "nt", "ntpath", "nturl2path", "numbers", "opcode", "operator",
    "optparse", "os", "ossaudiodev", "pathlib", "pdb", "pickle", "pickletools", "pipes", "pkgutil",
    "platform", "plistlib", "poplib", "posix", "posixpath", "pprint", "profile", "pstats", "pty",
    "pwd", "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random",
    "re", "readline", "reprlib", "resource", "rlcompleter", "runpy", "sched", "secrets", "select",
    "selectors", "shelve", "shlex", "shutil", "signal", "site", "smtpd", "smtplib", "sndhdr",
    "socket", "socketserver", "spwd", "sqlite3", "sre_compile", "sre_constants", "sre_parse",
    "ssl", "stat", "statistics", "string", "stringprep", "struct", "subprocess", "sunau",
    "symtable", "sys", "sysconfig", "syslog", "tabnanny", "tarfile", "telnetlib", "tempfile",
    "termios", "textwrap", "this", "threading", "time", "timeit", "tkinter", "token", "tokenize",
    "tomllib", "trace", "traceback", "tracemalloc", "tty", "turtle", "turtledemo", "types",
    "typing", "unicodedata", "unittest", "urllib", "uu", "uuid", "venv", "warnings", "wave",
    "weakref", "webbrowser", "winreg", "winsound", "wsgiref", "xdrlib", "xml", "xmlrpc", "zipapp",
    "zipfile", "zipimport", "zlib", "zoneinfo",
];

/// Packages that programs around PyTorch use.
#[rustfmt::skip]
const PACKAGES: &[&str] = &[
    "PIL", "absl", "accelerate", "albumentations", "apex", "attr", "attrs", "av", "bitsandbytes",
    "boto3", "catalyst", "clearml", "click", "clip", "cloudpickle", "colorama", "colossalai",
    "comet_ml", "cupy", "cv2", "dask", "datasets", "decord", "deepspeed", "detectron2",
    "diffusers", "dill", "einops", "evaluate", "fairscale", "fairseq", "fire", "flash_attn",
    "flax", "fsspec", "functorch", "future", "fvcore", "gensim", "gin", "gym", "gymnasium", "h5py",
    "haiku", "horovod", "huggingface_hub", "hydra", "ignite", "imageio", "iopath", "jax", "jaxlib",
    "joblib", "jsonlines", "keras", "kornia", "librosa", "lightly", "lightning",
    "lightning_fabric", "lmdb", "loguru", "matplotlib", "megatron", "ml_collections", "mlflow",
    "mmcls", "mmcv", "mmdet", "mmengine", "mmpretrain", "mmseg", "mpi4py", "msgpack", "mxnet",
    "neptune", "networkx", "nltk", "numba", "numpy", "omegaconf", "onnx", "onnxruntime",
    "open_clip", "opt_einsum", "optax", "orjson", "packaging", "paddle", "pandas", "peft",
    "pkg_resources", "plotly", "prettytable", "psutil", "pycocotools", "pydantic", "pynvml",
    "pytest", "pytorch_lightning", "ray", "regex", "requests", "rich", "rouge_score", "ruamel",
    "sacrebleu", "safetensors", "scipy", "seaborn", "sentence_transformers", "sentencepiece",
    "setuptools", "simplejson", "six", "skimage", "sklearn", "soundfile", "spacy", "submitit",
    "swanlab", "sympy", "tabulate", "tensorboard", "tensorboardX", "tensorflow",
    "tensorflow_datasets", "termcolor", "tiktoken", "timm", "tokenizers", "toml", "torch",
    "torch_geometric", "torch_scatter", "torch_sparse", "torch_xla", "torchaudio", "torchdata",
    "torchmetrics", "torchrec", "torchsde", "torchtext", "torchvision", "tqdm", "transformers",
    "triton", "trl", "typer", "ujson", "visdom", "wandb", "xformers", "yacs", "yaml", "zarr",
];

/// Compiled into the interpreter (`sys.builtin_module_names`) or loaded before any program
/// (`sys.modules` at its start), Python 3.11: no file can take their place.
#[rustfmt::skip]
const LOADED: &[&str] = &[
    "abc", "atexit", "builtins", "codecs", "encodings", "errno", "faulthandler", "gc",
    "genericpath", "io", "itertools", "marshal", "os", "posix", "posixpath", "pwd", "site", "stat",
    "sys", "time", "zipimport",
];

/// What a first name of an import is known to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Never a file of the project.
    Loaded,
    /// Of the standard library.
    Standard,
    /// Of a well-known package.
    Package,
    /// Nothing: the project's, or a package that we do not know.
    No,
}

pub(super) fn known(name: &str) -> Known {
    let is_in = |names: &[&str]| names.binary_search(&name).is_ok();
    match () {
        () if is_in(LOADED) => Known::Loaded,
        () if is_in(STANDARD) => Known::Standard,
        () if is_in(PACKAGES) => Known::Package,
        () => Known::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_apart() {
        for names in [STANDARD, PACKAGES, LOADED] {
            assert!(names.is_sorted_by(|a, b| a < b));
        }
        assert!(STANDARD.iter().all(|name| PACKAGES.binary_search(name).is_err()));
    }

    #[test]
    fn names_are_known() {
        let found = ["sys", "logging", "torch", "numpy", "models", "utils"].map(known);
        let no = Known::No;
        assert_eq!(found, [Known::Loaded, Known::Standard, Known::Package, Known::Package, no, no]);
    }
}

//! The command line as data.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{Selector, TorchVersion};
use crate::render::Format;

#[derive(Parser, Debug)]
#[command(
    name = "ddp-lint",
    version = super::version::SHORT,
    long_version = super::version::LONG,
    about = "Finds what will hang, crash or go silently wrong under DistributedDataParallel",
    long_about = "Finds what will hang, crash or go silently wrong under DistributedDataParallel, \
                  in PyTorch (Python) and tch (Rust) code. Without a command it checks.",
    after_help = "Exit status: 0 nothing at level error or warning, 1 findings at those levels, \
                  2 ddp-lint could not do its work.",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) check: Check,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Check files and folders (the default)
    Check(Box<Check>),
    /// Explain a rule, or the rule behind an error message
    Explain(Explain),
    /// List the rules
    Rules(Rules),
    /// Explain the keys of the configuration
    Config(Config),
    /// Serve an editor: the language server protocol over standard streams
    Server,
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Debug, Default, Clone)]
pub(crate) struct Check {
    /// Files and folders; default: the current folder, with `cargo ddp-lint` the workspace
    pub(crate) paths: Vec<PathBuf>,

    /// How to print findings
    #[arg(long, value_name = "FORMAT", default_value = "full", help_heading = "Output")]
    pub(crate) output_format: Format,
    /// As cargo calls it: `json` is `--output-format rustc-json`
    #[arg(long, value_name = "FORMAT", conflicts_with = "output_format", help_heading = "Output")]
    pub(crate) message_format: Option<MessageFormat>,
    /// Run `cargo check` as well and pass its messages on, for editors that know one check
    #[arg(
        long = "with-check",
        requires = "message_format",
        conflicts_with = "output_file",
        help_heading = "Output"
    )]
    pub(crate) relays_cargo: bool,
    /// Write findings to a file instead of the terminal
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output_file: Option<PathBuf>,
    /// Print how often each rule found something, instead of the findings
    #[arg(long, help_heading = "Output")]
    pub(crate) statistics: bool,
    /// List advice too; it is only counted otherwise (machine formats always hold it)
    #[arg(long, help_heading = "Output")]
    pub(crate) advice: bool,
    /// Check again whenever a file changes
    #[arg(short, long, conflicts_with_all = ["fix", "diff", "add_allow", "write_baseline"],
          help_heading = "Output")]
    pub(crate) watch: bool,
    /// When to use colours
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: Color,
    /// End with status 0 even if there are findings
    #[arg(short, long, help_heading = "Output")]
    pub(crate) exit_zero: bool,

    /// Rules that run, instead of those the configuration selects (comma-separated, or `all`)
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Selector::parse,
          help_heading = "Rules")]
    pub(crate) select: Option<Vec<Selector>>,
    /// Rules that do not run
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Selector::parse,
          help_heading = "Rules")]
    pub(crate) ignore: Vec<Selector>,
    /// Rules that run as well
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Selector::parse,
          help_heading = "Rules")]
    pub(crate) extend_select: Vec<Selector>,
    /// Rules whose findings are dropped in files that match: `tests/:unguarded-save`
    #[arg(long, value_name = "PATTERN:RULE", value_delimiter = ',',
          value_parser = per_file_ignore, help_heading = "Rules")]
    pub(crate) per_file_ignores: Vec<(String, Selector)>,
    /// Files and folders that are not checked (patterns as in .gitignore)
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', value_parser = pattern,
          help_heading = "Rules")]
    pub(crate) exclude: Vec<String>,
    /// The version of torch that the code is to run on
    #[arg(long, value_name = "VERSION", help_heading = "Rules")]
    pub(crate) target_torch: Option<TorchVersion>,
    /// Use this configuration file for all files
    #[arg(long, value_name = "FILE", conflicts_with = "isolated", help_heading = "Rules")]
    pub(crate) config: Option<PathBuf>,
    /// Use no configuration file
    #[arg(long, help_heading = "Rules")]
    pub(crate) isolated: bool,

    /// Mend what can be mended without changing the meaning
    #[arg(long, help_heading = "Fixes")]
    pub(crate) fix: bool,
    /// With --fix or --diff: also fixes that need a look
    #[arg(long, help_heading = "Fixes")]
    pub(crate) unsafe_fixes: bool,
    /// Show what --fix would change, and change nothing
    #[arg(long, conflicts_with = "fix", help_heading = "Fixes")]
    pub(crate) diff: bool,
    /// Write a suppression comment for every finding
    #[arg(long, conflicts_with_all = ["fix", "diff"], help_heading = "Adoption")]
    pub(crate) add_allow: bool,
    /// Remember the present findings in a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fix", "diff", "add_allow"],
          help_heading = "Adoption")]
    pub(crate) write_baseline: Option<PathBuf>,
    /// Report only what is not remembered in a file
    #[arg(long, value_name = "FILE", conflicts_with = "write_baseline", help_heading = "Adoption")]
    pub(crate) baseline: Option<PathBuf>,
    /// Read one file from standard input, and check it as if it lay at this path
    #[arg(long, value_name = "PATH", conflicts_with_all = ["paths", "watch", "add_allow"],
          help_heading = "Adoption")]
    pub(crate) stdin_filename: Option<PathBuf>,

    /// With --with-check: further arguments of `cargo check`
    #[arg(last = true, requires = "relays_cargo", value_name = "CARGO ARGUMENTS")]
    pub(crate) cargo_arguments: Vec<String>,
}

impl Check {
    /// The format that the flags ask for.
    pub(crate) fn format(&self) -> Format {
        match self.message_format {
            Some(MessageFormat::Json) => Format::RustcJson,
            None => self.output_format,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// A rule, or the text of an error message
    #[arg(required = true, value_name = "RULE|TEXT")]
    pub(crate) what: Vec<String>,
    /// When to use colours
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
}

#[derive(Args, Debug)]
pub(crate) struct Rules {
    /// All documentation, as Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// Everything about each rule, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Config {
    /// Explain this key only
    pub(crate) key: Option<String>,
    /// Print the JSON schema of the configuration, for editors
    #[arg(long, conflicts_with = "key")]
    pub(crate) schema: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageFormat {
    Json,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Color {
    /// In a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

fn pattern(text: &str) -> Result<String, String> {
    crate::config::check_pattern(text).map(|()| text.to_owned())
}

fn per_file_ignore(text: &str) -> Result<(String, Selector), String> {
    let (glob, rule) =
        text.rsplit_once(':').ok_or("write a file pattern, a colon and a rule: tests/:all")?;
    Ok((pattern(glob)?, Selector::parse(rule)?))
}

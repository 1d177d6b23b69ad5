//! For people: the source with a label on every place involved, why, and what to do.

use std::error::Error;
use std::fmt;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
    SourceCode, ThemeCharacters, ThemeStyles,
};

use super::{Item, Look, relative_path};
use crate::driver::Loaded;
use crate::finding::{Harm, Level};
use crate::model::{FileId, Site};
use crate::rules;

pub(super) fn render(items: &[Item<'_>], look: &Look) -> String {
    let handler = handler(look);
    items.iter().fold(String::new(), |mut text, item| {
        let diagnostic = Shown::new(*item, look);
        if handler.render_report(&mut text, &diagnostic).is_err() {
            unreachable!("a string takes any text");
        }
        text.push('\n');
        text
    })
}

fn handler(look: &Look) -> GraphicalReportHandler {
    let theme = GraphicalTheme {
        characters: if look.unicode {
            ThemeCharacters::unicode()
        } else {
            ThemeCharacters::ascii()
        },
        styles: if look.color { ThemeStyles::ansi() } else { ThemeStyles::none() },
    };
    GraphicalReportHandler::new_themed(theme)
        .with_width(look.width)
        .with_context_lines(1)
        .with_links(false)
}

/// The rule's name, as a link to its documentation (OSC 8) where the terminal shows links.
fn linked(rule: &str, look: &Look) -> String {
    let link = look.link.and_then(|link| link(rules::find(rule)?));
    link.map_or_else(|| rule.to_owned(), |link| format!("\x1b]8;;{link}\x1b\\{rule}\x1b]8;;\x1b\\"))
}

/// A finding, or a place in another file that belongs to it, as miette wants it.
#[derive(Debug)]
struct Shown {
    message: String,
    code: Option<String>,
    severity: Severity,
    help: Option<String>,
    why: Option<Why>,
    source: NamedSource<String>,
    labels: Vec<LabeledSpan>,
    elsewhere: Vec<Shown>,
}

/// Shown below the message, as its cause.
#[derive(Debug)]
struct Why(String);

impl Shown {
    fn new(item: Item<'_>, look: &Look) -> Self {
        let Item { finding, loaded } = item;
        let file = finding.file();
        let mut labels = vec![LabeledSpan::new_primary_with_span(
            harm(finding.harm).map(str::to_owned),
            finding.site.span.range(),
        )];
        let mut elsewhere = Vec::new();
        for related in &finding.related {
            if related.site.file == file {
                let range = related.site.span.range();
                labels.push(LabeledSpan::new_with_span(Some(related.message.clone()), range));
            } else {
                elsewhere.push(Self::elsewhere(loaded, related.site, &related.message, look));
            }
        }
        let words = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            message: finding.message.clone(),
            code: Some(linked(finding.rule, look)),
            severity: severity(finding.level),
            help: words(&finding.help),
            why: words(&finding.why).map(Why),
            source: source(loaded, file, look),
            labels,
            elsewhere,
        }
    }

    fn elsewhere(loaded: &Loaded, site: Site, message: &str, look: &Look) -> Self {
        Self {
            message: message.to_owned(),
            code: None,
            severity: Severity::Advice,
            help: None,
            why: None,
            source: source(loaded, site.file, look),
            labels: vec![LabeledSpan::new_primary_with_span(None, site.span.range())],
            elsewhere: Vec::new(),
        }
    }
}

fn source(loaded: &Loaded, file: FileId, look: &Look) -> NamedSource<String> {
    let path = relative_path(&loaded.facts(file).path, &look.folder);
    NamedSource::new(path, loaded.project.file(file).text.to_string())
}

fn severity(level: Level) -> Severity {
    match level {
        Level::Error => Severity::Error,
        Level::Warning => Severity::Warning,
        Level::Advice => Severity::Advice,
    }
}

/// What the user will suffer, for the label of the place itself.
fn harm(harm: Harm) -> Option<&'static str> {
    Some(match harm {
        Harm::Hang => "this can hang",
        Harm::Wrong => "this gives wrong numbers",
        Harm::Crash => "this crashes",
        Harm::Corrupt => "this damages a file",
        Harm::Waste => "this wastes time or memory",
        Harm::Noise => return None,
    })
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Why {}

impl Error for Shown {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.why.as_ref().map(|why| -> &(dyn Error + 'static) { why })
    }
}

impl Diagnostic for Shown {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let code = self.code.as_ref()?;
        Some(Box::new(code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.help.as_ref()?;
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        let elsewhere = self.elsewhere.iter().map(|shown| -> &dyn Diagnostic { shown });
        (!self.elsewhere.is_empty()).then(|| -> Box<dyn Iterator<Item = _>> { Box::new(elsewhere) })
    }
}

/// One item without colours, for formats that carry a rendering along.
pub(crate) fn plain_text(item: Item<'_>, look: &Look) -> String {
    render(&[item], &Look { color: false, unicode: true, link: None, ..look.clone() })
}

//! A run as text, for tests and for those who write rules.

use std::fmt::Write;

use super::{EventKind, Program, Term, TermKind, Value};

/// Every event of a run: where, what, under which conditions.
pub fn events(program: &Program<'_>) -> String {
    let mut text = String::new();
    for event in program.events() {
        let file = program.project().file(event.site.file);
        let line = 1 + file.text[..event.site.span.start as usize].matches('\n').count();
        let what = match &event.kind {
            EventKind::Call(call) => {
                let name = call.name.map_or("?", |n| n.as_str());
                let receiver =
                    call.receiver.as_ref().map(|r| value(program, r)).unwrap_or_default();
                let arguments: Vec<String> = call
                    .arguments
                    .iter()
                    .map(|a| {
                        let name = a.name.map(|n| format!("{n}=")).unwrap_or_default();
                        format!("{name}{}", value(program, &a.value))
                    })
                    .collect();
                let result = value(program, &call.result);
                format!("{:?} {receiver}.{name}({}) -> {result}", call.role, arguments.join(", "))
            }
            EventKind::Forward(forward) => format!(
                "Forward {} {:?} {:?} -> {}",
                term(program, forward.module, 3),
                forward.via,
                forward.method,
                value(program, &forward.result)
            ),
            EventKind::AttributeRead { of, name, .. } => {
                format!("Read {}.{name}", term(program, *of, 3))
            }
            EventKind::AttributeStore { of, name, value: v, .. } => {
                format!("Store {}.{name} = {}", term(program, *of, 3), value(program, v))
            }
            EventKind::Return { value: v } => format!("Return {}", value(program, v)),
            EventKind::Assign { name, value: v } => {
                format!("Assign {name} = {}", value(program, v))
            }
            EventKind::Test { condition, .. } => format!("Test {}", term(program, *condition, 6)),
            EventKind::Raise => "Raise".to_owned(),
        };
        let path: Vec<String> = program
            .conditions(event.path)
            .filter(|node| node.condition != program.terms().yes)
            .map(|node| term(program, node.condition, 5))
            .collect();
        let reach = program.reach(event.path);
        let grad = if event.modes.grad { "" } else { " no_grad" };
        let orphan = if program.is_orphan(event) { " orphan" } else { "" };
        let _ = writeln!(
            text,
            "{}:{line} #{} {what} | {reach:?}{grad}{orphan} [{}]",
            file.path,
            event.id.0,
            path.join("; ")
        );
    }
    text
}

pub fn value(program: &Program<'_>, value: &Value) -> String {
    let parts: Vec<String> = value
        .alternatives
        .iter()
        .map(|a| {
            let what = term(program, a.term, 4);
            if a.when == program.terms().yes {
                what
            } else {
                format!("({what} if {})", term(program, a.when, 4))
            }
        })
        .collect();
    parts.join(" or ")
}

pub fn term(program: &Program<'_>, of: Term, depth: u32) -> String {
    if depth == 0 {
        return "…".to_owned();
    }
    let terms = program.terms();
    let sub = |t: Term| term(program, t, depth - 1);
    let list =
        |parts: &[Term], by: &str| parts.iter().map(|&t| sub(t)).collect::<Vec<_>>().join(by);
    match terms.kind(of) {
        TermKind::Const(value) => format!("{value:?}"),
        TermKind::Rank(kind) => format!("{kind:?}"),
        TermKind::Opaque { site, .. } => {
            let origins: Vec<String> =
                terms.origins(of).iter().map(|o| format!("#{}", o.0)).collect();
            let taint = terms.taint(of);
            format!(
                "<{} {taint:?}{}>",
                program.text(*site).split('\n').next().unwrap_or_default(),
                origins.join("")
            )
        }
        TermKind::Parameter { name, .. } => format!("param {name}"),
        TermKind::Outside(name) | TermKind::Package(name) => name.to_string(),
        TermKind::Module(file) => program.project().file(*file).path.clone(),
        TermKind::Function { function, .. } => format!("fn {}", program.function(*function).name),
        TermKind::Class(class) => format!("class {}", program.class(*class).name),
        TermKind::Object(id) => {
            let object = program.object(*id);
            let class = match object.class {
                super::ObjectClass::Outside(name) => name.to_string(),
                super::ObjectClass::Project(class) => program.class(class).name.to_string(),
                other => format!("{other:?}"),
            };
            format!("{class}@{}", id.0)
        }
        TermKind::Inner(id) => format!("inner of @{}", id.0),
        TermKind::Attribute(of, name) => format!("{}.{name}", sub(*of)),
        TermKind::Item(of, key) => format!("{}[{}]", sub(*of), sub(*key)),
        TermKind::Apply(name, parts) => format!("{name}({})", list(parts, ", ")),
        TermKind::Binary(op, a, b) => format!("({} {op:?} {})", sub(*a), sub(*b)),
        TermKind::Compare(op, a, b) => format!("({} {op:?} {})", sub(*a), sub(*b)),
        TermKind::Not(of) => format!("not {}", sub(*of)),
        TermKind::And(parts) => format!("({})", list(parts, " and ")),
        TermKind::Or(parts) => format!("({})", list(parts, " or ")),
        TermKind::Tuple(parts) => format!("({})", list(parts, ", ")),
        TermKind::Text(parts) => format!("text({})", list(parts, ", ")),
        other => format!("{other:?}"),
    }
}

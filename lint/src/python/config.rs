//! What a Python project's own configuration says: console scripts.

/// Modules (dotted) that console scripts start. `path` tells the kind of file.
pub(super) fn scripts(path: &str, text: &str) -> Vec<String> {
    match path.rsplit('/').next().unwrap_or(path) {
        "pyproject.toml" => toml_scripts(text),
        "setup.cfg" => text.lines().filter_map(script).collect(),
        "setup.py" => quoted(text).filter_map(script).collect(),
        _ => Vec::new(),
    }
}

fn toml_scripts(text: &str) -> Vec<String> {
    let Ok(config) = text.parse::<toml::Table>() else { return Vec::new() };
    let tables =
        [&["project", "scripts"][..], &["project", "gui-scripts"], &["tool", "poetry", "scripts"]];
    let mut modules = Vec::new();
    for path in tables {
        let (first, rest) = path.split_first().expect("a path has parts");
        let table = rest.iter().try_fold(config.get(*first), |at, key| Some(at?.get(*key)));
        let Some(Some(toml::Value::Table(table))) = table else { continue };
        for target in table.values() {
            let reference = || target.get("reference").or_else(|| target.get("callable"));
            let target = target.as_str().or_else(|| reference()?.as_str());
            modules.extend(target.and_then(module));
        }
    }
    modules
}

/// The module of `name = package.module:function`.
fn script(line: &str) -> Option<String> {
    let (name, target) = line.split_once('=')?;
    let is_name = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
    let is_named = !name.trim().is_empty() && name.trim().chars().all(is_name);
    if is_named { module(target) } else { None }
}

fn module(target: &str) -> Option<String> {
    let (module, function) = target.split_once(':')?;
    let module = module.trim();
    if !function.trim_start().starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return None;
    }
    let is_dotted =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    module.split('.').all(is_dotted).then(|| module.to_owned())
}

/// The contents of string literals, roughly: those that hold no quotes.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find(['"', '\''])?;
        let quote = rest[start..].chars().next()?;
        let inner = &rest[start + 1..];
        let end = inner.find([quote, '\n'])?;
        rest = &inner[end + 1..];
        Some(&inner[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_each_kind_of_file() {
        let toml = "
[project.scripts]
a = 'p.a:main'
[project.gui-scripts]
b = \"p.b:main [extra]\"
[tool.poetry.scripts]
c = { reference = 'p.c:main', type = 'console' }
d = { callable = 'p.d:main' }
[tool.other.scripts]
e = 'p.e:main'
";
        assert_eq!(scripts("pyproject.toml", toml), ["p.a", "p.b", "p.c", "p.d"]);
        let cfg = "[metadata]\nurl = https://example.org\n[options.entry_points]\n\
                   console_scripts =\n    a = p.a:main\n    b-c = p.b : main\n";
        assert_eq!(scripts("x/setup.cfg", cfg), ["p.a", "p.b"]);
        let setup = "setup(name='x', url='https://e.org', entry_points={\n\
                     'console_scripts': ['a=p.a:main', \"b = p.b:main\"]})";
        assert_eq!(scripts("setup.py", setup), ["p.a", "p.b"]);
        assert_eq!(scripts("setup.py", "'"), [""; 0]);
        assert_eq!(scripts("other.py", setup), [""; 0]);
    }
}

use crate::analysis::{Call, Event, EventKind, FrameId, Term, TermKind, Value};
use crate::model::{Expr, ExprKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A field keeps something made of a registered tensor instead of that tensor.
    ///
    /// `to_kind`, `Tensor::cat` and arithmetic give another tensor. The store trains, saves and
    /// loads the registered one, and `Ddp` broadcasts it; the field keeps the value of the moment
    /// of construction, on each rank its own. A second backward through it fails besides: `Trying
    /// to backward through the graph a second time`.
    ///
    /// ```rust bad
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Masked { mask: Tensor }
    ///
    /// impl Masked {
    ///     fn new(p: &nn::Path) -> Masked {
    ///         let mask = p.ones_no_train("mask", &[8, 8]).to_kind(Kind::Bool); //~ registered-alias-lost
    ///         Masked { mask }
    ///     }
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Masked { mask: Tensor }
    ///
    /// impl Masked {
    ///     fn new(p: &nn::Path) -> Masked {
    ///         let mask = Tensor::ones([8, 8], (Kind::Bool, p.device()));
    ///         Masked { mask: p.add("mask", mask, false) }
    ///     }
    /// }
    /// ```
    ///
    /// # Known limits
    /// Views (`transpose`, `view`, `unsqueeze`) share the storage and are silent; so are conversions
    /// to a kind that is not written out, or to `Float`, which is what most stores hold.
    pub static RULE = {
        name: "registered-alias-lost",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for event in program.events() {
        if let EventKind::AttributeStore { of, name, value, augmented: false } = &event.kind
            && keeps_a_tensor(program, *of, *name)
        {
            tell(program, report, *name, value.single(), event.site);
        }
    }
    // The fields of tuple structs are filled without a name.
    for object in program.objects() {
        let Some(class) = program.class_of(object) else { continue };
        for field in &program.class(class).fields {
            if field.annotation.as_ref().is_some_and(is_tensor) {
                let kept = program.attribute_now(program.term_of(object.id), &field.name);
                tell(program, report, field.name, kept.and_then(Value::single), object.site);
            }
        }
    }
}

/// A tensor of a layer of tch that is written out (`nn::Linear { ws, bs }`), or a field that is
/// declared as one.
fn keeps_a_tensor(program: &Program<'_>, of: Term, name: Name) -> bool {
    let Some(object) = program.object_of(of) else { return false };
    let Some(class) = program.class_of(object) else {
        return object.role == Role::Layer && matches!(&*name, "ws" | "bs");
    };
    let declared = program.class(class).fields.iter().find(|field| field.name == name);
    declared.and_then(|field| field.annotation.as_ref()).is_some_and(is_tensor)
}

fn tell(
    program: &Program<'_>,
    report: &mut Report<'_>,
    name: Name,
    kept: Option<Term>,
    holder: Site,
) {
    let Some(kept) = kept else { return };
    let Some(source) = registered_source(program, kept) else { return };
    let Some((site, how, frame)) = made_anew(program, kept, 4) else { return };
    if !runs_within(program, source, frame) {
        return;
    }
    report
        .at(site, format!("field `{name}` keeps what `{how}` makes, not the registered tensor"))
        .why(
            "the store trains, saves and loads the registered one; this one stays as it was \
             built, on each rank its own",
        )
        .help(
            "make the value first, then register it (`p.add(name, tensor, ..)`), or keep the \
             registered tensor and convert it in forward",
        )
        .related(source.site, "registered here")
        .related(holder, "kept here");
}

fn is_tensor(annotation: &Expr) -> bool {
    match &annotation.kind {
        ExprKind::Index { value, index } => {
            value.last_name().is_some_and(|n| matches!(&*n, "Option" | "Box" | "Rc" | "Arc"))
                && is_tensor(index)
        }
        _ => annotation.last_name().is_some_and(|n| &*n == "Tensor"),
    }
}

/// The call that registered what a value was made of.
fn registered_source<'r, 'p>(program: &'r Program<'p>, kept: Term) -> Option<&'r Event<'p>> {
    let registers = |call: &Call<'_>| {
        matches!(call.role, Role::RegisterParameter | Role::RegisterBuffer)
            && call.result.single() != Some(kept)
    };
    let origins = program.terms().origins(kept).iter().map(|&id| program.event(id));
    let mut calls = origins.filter(|e| e.call().is_some_and(&registers));
    let source = calls.next();
    // What is registered again at the end is kept well.
    let is_registered = program.terms().origins(kept).iter().any(|&id| {
        matches!(&program.event(id).kind, EventKind::Call(c)
            if matches!(c.role, Role::RegisterParameter | Role::RegisterBuffer)
                && c.result.single() == Some(kept))
    });
    source.filter(|_| !is_registered)
}

/// What registers runs while the function runs that makes the value: not in a forward, which
/// reads what the constructor left.
fn runs_within(program: &Program<'_>, event: &Event<'_>, frame: FrameId) -> bool {
    let mut at = Some(event.frame);
    while let Some(id) = at {
        if id == frame {
            return true;
        }
        at = program.frame(id).caller;
    }
    false
}

/// Where, by what and in which frame a tensor was made that shares nothing with its source.
fn made_anew(program: &Program<'_>, kept: Term, depth: u32) -> Option<(Site, String, FrameId)> {
    let gives = |call: &Call<'_>| call.result.single() == Some(kept);
    if let Some((event, call)) = program.calls(Role::ChangeKind).find(|(_, call)| gives(call)) {
        let kind = call.arguments.first()?.value.single()?;
        let is_other = match program.terms().kind(kind) {
            TermKind::Outside(name) => name.contains("Kind.") && !name.ends_with(".Float"),
            _ => false,
        };
        return is_other.then(|| (event.site, called(program, event), event.frame));
    }
    if let Some((event, _)) = program.calls(Role::Concat).find(|(_, call)| gives(call)) {
        return Some((event.site, called(program, event), event.frame));
    }
    // Moved to where it may be already: what was moved counts.
    if let Some((_, call)) = program.calls(Role::Move).find(|(_, call)| gives(call)) {
        let moved = call.receiver.as_ref()?.single()?;
        return if depth > 0 { made_anew(program, moved, depth - 1) } else { None };
    }
    let TermKind::Opaque { instance, .. } = *program.terms().kind(kept) else { return None };
    let (site, text) = program.made_by(kept)?;
    Some((site, arithmetic(text)?.to_string(), FrameId(instance)))
}

fn called(program: &Program<'_>, event: &Event<'_>) -> String {
    let callee = program.callee_text(event).unwrap_or("this");
    let short = callee.rsplit(['.', ':']).next().unwrap_or(callee).trim();
    if callee.contains("Tensor::") { callee.to_owned() } else { short.to_owned() }
}

/// The operator between the operands of an expression, outside of all brackets.
fn arithmetic(text: &str) -> Option<char> {
    let mut depth = 0_i32;
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '"' => skip_string(&mut chars),
            '|' | ';' | '=' => return None,
            '*' | '+' | '-' | '/' if depth == 0 && before == ' ' && chars.peek() == Some(&' ') => {
                return Some(c);
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// Goes on behind the closing quote.
fn skip_string(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_weights_count() {
        check_rust(
            "
use tch::{nn, nn::Init, Tensor};
struct Attention { qkv: nn::Linear }
impl Attention {
    fn new(vs: nn::Path, dim: i64) -> Self {
        let q = vs.var(\"q\", &[dim, dim], Init::Const(0.));
        let k = vs.var(\"k\", &[dim, dim], Init::Const(0.));
        let v = vs.var(\"v\", &[dim, dim], Init::Const(0.));
        let ws = Tensor::cat(&[q, k, v], 0); //~ registered-alias-lost: `ws`
        Self { qkv: nn::Linear { ws, bs: None } }
    }
}
",
        );
    }

    #[test]
    fn scaling_at_construction_counts() {
        check_files(&[
            (
                "src/main.rs",
                "
mod embed;
use tch::{nn, Device};
fn main() {
    let vs = nn::VarStore::new(Device::Cpu);
    embed::Embed::new(&(vs.root() / \"embed\"));
}
",
            ),
            (
                "src/embed.rs",
                "
use tch::{nn::Path, Tensor};
pub struct Embed { pub table: Option<Tensor> }
impl Embed {
    pub fn new(p: &Path) -> Embed {
        let table = p.randn_standard(\"table\", &[10, 4]) * 0.02; //~ registered-alias-lost: `*`
        Embed { table: Some(table) }
    }
}
",
            ),
        ]);
    }

    #[test]
    fn a_half_buffer_in_a_tuple_struct_counts() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
struct Ramp(Tensor);
fn ramp(p: &nn::Path) -> Ramp {
    let p = p / \"ramp\";
    Ramp(p.zeros_no_train(\"steps\", &[16]).to_kind(Kind::Half)) //~ registered-alias-lost
}
",
        );
    }

    #[test]
    fn views_and_conversions_in_forward_are_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
struct Net { weight: Tensor, turned: Tensor, mask: Tensor, width: f64 }
impl Net {
    fn new(p: &nn::Path) -> Net {
        let weight = p.ones(\"weight\", &[4, 8]);
        let turned = weight.tr();
        let width = weight.size()[0] as f64 * 2.0;
        Net { turned, mask: p.ones_no_train(\"mask\", &[8]), width, weight }
    }
    fn forward(&self, x: &Tensor) -> Tensor {
        let mask = self.mask.to_kind(Kind::Bool);
        x.matmul(&(&self.weight * 0.5)).masked_fill(&mask, 0.)
    }
}
",
        );
    }

    #[test]
    fn a_conversion_that_nobody_is_seen_to_call_counts() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
pub struct Causal { mask: Tensor }
impl Causal {
    pub fn new(p: &nn::Path, n: i64) -> Self {
        let mut mask = p.f_ones_no_train(\"mask\", &[n, n]).unwrap().to_kind(Kind::Uint8); //~ registered-alias-lost
        let mask = mask.to_device(p.device());
        Self { mask }
    }
}
",
        );
    }

    #[test]
    fn what_forward_puts_into_its_output_is_silent() {
        check_rust(
            "
use tch::{nn, Tensor};
struct Output { scores: Tensor, hidden: Option<Tensor> }
struct Head { decoder: nn::Linear, bias: Tensor }
impl Head {
    fn new(p: &nn::Path) -> Head {
        let decoder = nn::linear(p / \"decoder\", 4, 4, Default::default());
        Head { decoder, bias: p.zeros(\"bias\", &[4]) }
    }
    fn forward_t(&self, x: &Tensor) -> Output {
        let scores = x.apply(&self.decoder) + &self.bias;
        Output { scores, hidden: None }
    }
}
",
        );
    }

    #[test]
    fn what_is_registered_after_the_conversion_is_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
struct Net { fused: Tensor, mask: Tensor }
impl Net {
    fn new(p: &nn::Path) -> Net {
        let halves = Tensor::cat(&[Tensor::ones([2], (Kind::Float, p.device()))], 0);
        let mask = Tensor::ones([2], (Kind::Float, p.device())).to_kind(Kind::Bool);
        Net { fused: p.add(\"fused\", halves, true), mask: p.add(\"mask\", mask, false) }
    }
}
",
        );
    }

    #[test]
    fn a_conversion_to_the_kind_it_has_is_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
struct Net { scale: Tensor }
fn net(p: &nn::Path, kind: Kind) -> (Net, Net) {
    let float = Net { scale: p.ones(\"a\", &[2]).to_kind(Kind::Float) };
    (float, Net { scale: p.ones(\"b\", &[2]).to_kind(kind) })
}
",
        );
    }
}

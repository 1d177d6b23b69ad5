//! The stages on definitions given as text: what is generated, and every objection with its words.
//! No compiler and no libtorch.

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{DeriveInput, File, Item, ItemImpl};

use crate::{attribute, expand, output};

/// What the derive behind `#[data_parallel]` makes of a definition.
fn model(source: &str) -> File {
    let input: DeriveInput = syn::parse_str(source).unwrap();
    file(&expand::replicable(&input))
}

fn tensor_output(source: &str) -> File {
    let input: DeriveInput = syn::parse_str(source).unwrap();
    file(&output::tensor_output(&input))
}

fn attribute(args: &str, item: &str) -> File {
    file(&attribute::data_parallel(&args.parse().unwrap(), item.parse().unwrap()))
}

/// Generated code must be Rust; that is checked here for every test.
fn file(tokens: &TokenStream) -> File {
    syn::parse2(tokens.clone()).unwrap_or_else(|error| panic!("{error} in\n{tokens}"))
}

/// The texts of the compile errors in generated code.
fn errors(file: &File) -> Vec<String> {
    #[derive(Default)]
    struct Errors(Vec<String>);
    impl<'f> Visit<'f> for Errors {
        fn visit_macro(&mut self, call: &'f syn::Macro) {
            if call.path.segments.last().is_some_and(|last| last.ident == "compile_error") {
                self.0.push(call.parse_body::<syn::LitStr>().unwrap().value());
            }
            visit::visit_macro(self, call);
        }
    }
    let mut found = Errors::default();
    found.visit_file(file);
    found.0
}

fn impls(file: &File) -> Vec<&ItemImpl> {
    let items = file.items.iter();
    items.filter_map(|item| if let Item::Impl(block) = item { Some(block) } else { None }).collect()
}

/// Generated code as text with single spaces, to look for calls in.
fn text(file: &File) -> String {
    quote::quote!(#file).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The where-clause of the first impl, by predicate.
fn bounds(source: &str) -> Vec<String> {
    let file = model(source);
    let clause = impls(&file)[0].generics.where_clause.clone();
    let predicates = clause.into_iter().flat_map(|clause| clause.predicates);
    predicates
        .map(|it| quote::quote!(#it).to_string().replace(":: tch_ddp :: __private :: ", ""))
        .collect()
}

#[test]
fn a_sound_definition_gives_a_walk_and_register_and_nothing_else() {
    let file = model("pub struct Net { fc: nn::Linear, blocks: Vec<Block>, rate: f64 }");
    assert!(errors(&file).is_empty());
    let blocks = impls(&file);
    assert_eq!((file.items.len(), blocks.len()), (2, 2));
    assert!(blocks[0].trait_.is_some() && blocks[1].trait_.is_none());
    assert!(text(&file).contains("pub fn register"));
}

#[test]
fn register_is_as_visible_as_the_type() {
    assert!(text(&model("pub(crate) struct Net(Block);")).contains("pub (crate) fn register"));
    assert!(!text(&model("struct Net(Block);")).contains("pub"));
}

#[test]
fn the_attribute_leaves_the_definition_as_it_was() {
    let item = "/// A net.\n#[derive(Debug)] struct Net<T> where T: Send { #[dp(skip)] x: T }";
    let file = attribute("bound = \"\"", item);
    let Item::Struct(found) = &file.items[0] else { panic!("not a struct") };
    let wanted: syn::ItemStruct = syn::parse_str(item).unwrap();
    assert_eq!(found.fields, wanted.fields);
    assert_eq!(found.generics, wanted.generics);
    let names: Vec<_> = found
        .attrs
        .iter()
        .map(|attr| attr.path().segments.last().unwrap().ident.to_string())
        .collect();
    assert_eq!(names, ["derive", "dp", "doc", "derive"]);
}

#[test]
fn every_part_of_nested_containers_is_looked_through() {
    let code = text(&model("struct Net { x: Option<Vec<(nn::Linear, [Box<Block>; 2], usize)>> }"));
    for part in ["nn :: Linear", "Block", "usize"] {
        let probe = format!("Probe :: < {part} > :: TAG");
        assert_eq!(code.matches(&probe).count(), 1, "{probe}");
    }
    assert_eq!(code.matches("Inside (").count(), 2);
    assert_eq!(code.matches(":: Each :: <").count(), 2);
}

#[test]
fn what_depends_on_a_type_alone_is_written_once_for_all_its_fields() {
    let fields = (0..40).map(|k| format!("f{k}: Option<nn::Linear>, g{k}: Tensor"));
    let code = text(&model(&format!("struct Net {{ {} }}", fields.collect::<Vec<_>>().join(", "))));
    assert_eq!(code.matches("Probe ::").count(), 2);
    assert_eq!(code.matches(":: fields (").count(), 1);
    assert!(code.contains("\"f0 g0 f1 g1 "));
    assert!(code.contains("b\"\\0\\x01\\0\\x01"), "{code}");
}

#[test]
fn more_types_than_a_byte_can_number_come_in_more_calls() {
    let fields = (0..600).map(|k| format!("f{k}: Block{k}"));
    let code = text(&model(&format!("struct Net {{ {} }}", fields.collect::<Vec<_>>().join(", "))));
    assert_eq!(code.matches(":: fields (").count(), 3);
    assert_eq!(code.matches("& self . f").count(), 600);
}

#[test]
fn numbers_are_passed_over_unless_something_is_said_about_them() {
    let code = text(&model("struct Net { rate: f64, n: usize, x: Block, of: my::usize }"));
    assert!(code.contains("\"x of\""), "{code}");
    assert!(text(&model("struct Net { #[dp(skip)] n: usize }")).contains("skipped"));
}

#[test]
fn maps_are_walked_in_the_order_of_their_keys_if_the_keys_have_one() {
    let code = |key: &str| text(&model(&format!("struct Net {{ x: HashMap<{key}, Block> }}")));
    for key in ["String", "&'static str", "usize", "i64"] {
        assert!(code(key).contains("Sorted"), "{key}");
    }
    assert!(!code("(u8, u8)").contains("Sorted"));
    assert!(!code("Layer").contains("Sorted"));
}

#[test]
fn fields_are_entered_under_their_declared_names_and_roles() {
    let code = text(&model(
        "struct Net {
            plain: Block,
            #[dp(rename = \"lm_head\")] head: Block,
            #[dp(param, name = \"H_{k}\")] factors: Vec<Tensor>,
            #[dp(buffer)] mean: Tensor,
            #[dp(skip)] cache: Tensor,
            r#type: Block,
        }",
    ));
    let code = code.replace(":: tch_ddp :: __private :: ", "");
    for call in [
        "(__visitor , \"plain\" ,",
        "enter_as (\"head\" , \"lm_head\" , Role :: Undeclared)",
        "enter_pattern (\"factors\" , \"H_{k}\" , Role :: Parameter)",
        "enter_as (\"mean\" , \"mean\" , Role :: Buffer)",
        "skipped (__visitor , \"cache\")",
        "(__visitor , \"type\" ,",
    ] {
        assert_eq!(code.matches(call).count(), 1, "{call} in {code}");
    }
}

#[test]
fn each_call_that_enters_has_one_that_leaves() {
    let code = text(&model(
        "enum Stage { Plain(Block), Pair(Block, Tensor), Cross { inner: Box<Block> }, Nothing,
                      Many(#[dp(buffer)] Vec<Option<Tensor>>), Skipped(#[dp(skip)] u8),
                      Named { #[dp(rename = \"a\")] x: Tensor, #[dp(name = \"b_{k}\")] y: Vec<T> } }",
    ));
    let entered = code.matches(". enter").count() + code.matches(". key").count();
    assert_eq!(entered, code.matches(". leave").count());
    assert!(entered > 0);
}

#[test]
fn a_newtype_adds_nothing_to_names() {
    assert!(!text(&model("struct Head(nn::Linear);")).contains(". enter"));
    assert!(text(&model("struct Head(#[dp(rename = \"w\")] Tensor);")).contains("enter_as"));
    assert!(!text(&model("struct Head(nn::Linear);")).contains(":: fields ("));
    assert!(text(&model("struct Pair(nn::Linear, nn::Linear);")).contains("\"0 1\""));
}

#[test]
fn parameters_that_are_walked_are_bounded_and_others_are_not() {
    let none: [&str; 0] = [];
    assert_eq!(bounds("struct Net<B> { b: B }"), ["B : Replicable"]);
    assert_eq!(bounds("struct Net<B> { b: Vec<Option<B>>, c: B }"), ["B : Replicable"]);
    assert_eq!(bounds("struct Net<B> { b: Wrapper<B> }"), ["B : Replicable"]);
    assert_eq!(bounds("struct Net<B: Body> { b: B::Layer }"), ["B :: Layer : Replicable"]);
    assert_eq!(
        bounds("struct Net<B: Body> { b: <B as Body>::Layer }"),
        ["< B as Body > :: Layer : Replicable"]
    );
    assert_eq!(bounds("struct Net<B> { b: PhantomData<B>, c: fn(B) -> B }"), none);
    assert_eq!(bounds("struct Net<B> { b: Box<dyn Strategy<B>> }"), none);
    assert_eq!(bounds("struct Net<B> { #[dp(skip)] b: B, c: Block }"), none);
    assert_eq!(bounds("struct Net<F: Fn(&Tensor) -> Tensor> { f: F }"), none);
    assert_eq!(
        bounds("struct Net<F> where F: FnOnce() { f: F }"),
        ["F : FnOnce ()"],
        "only the user's own clause"
    );
    assert_eq!(bounds("#[dp(bound = \"\")] struct Net<B> { b: B }"), none);
    assert_eq!(bounds("#[dp(bound = \"B: Body\")] struct Net<B> { b: B }"), ["B : Body"]);
}

#[test]
fn parameters_are_walked_by_their_bound_and_concrete_types_by_choice() {
    let walked = text(&model("struct Net<B> { b: B }"));
    assert!(walked.contains(":: Own ,") && !walked.contains("Probe ::"));
    let own = text(&model("#[dp(bound = \"\")] struct Net<B> { b: B }"));
    assert!(own.contains("Probe ::") && !own.contains(":: Own ,"));
}

#[test]
fn empty_types_are_walked_too() {
    for source in ["struct Unit;", "struct Empty {}", "enum Never {}", "enum Kind { A, B }"] {
        assert!(errors(&model(source)).is_empty(), "{source}");
    }
}

#[test]
fn another_path_to_the_crate_is_used_everywhere() {
    let code = text(&model("#[dp(crate = \"crate::ddp\")] struct Net { x: Vec<Block> }"));
    assert!(code.contains("crate :: ddp :: __private"));
    assert!(!code.contains("tch_ddp ::"));
    let code = text(&attribute("crate = \"my::ddp\"", "struct Net { x: Block }"));
    assert!(code.contains("my :: ddp :: __private :: DeriveReplicable"));
    let block = "impl Net { fn forward(&self) -> Tensor { todo() } }";
    let code = text(&attribute("crate = \"my::ddp\"", block));
    assert!(code.contains("my :: ddp :: __private :: returns_tensors"));
}

#[test]
fn the_method_can_be_called_otherwise() {
    let code = text(&model("#[dp(register = \"register_tensors\")] struct Net(Block);"));
    assert!(code.contains("fn register_tensors") && !code.contains("fn register ("));
}

#[test]
fn a_constructor_makes_fields_in_their_order_and_takes_the_rest_from_its_arguments() {
    let code = text(&model(
        "#[dp(new(channels: i64, rate: f64))]
        struct Net {
            rate: f64,
            #[dp(param, name = \"H_{k}\", count = \"3\", shape = \"[channels, k as i64]\",
                 init = \"-0.5\")]
            factors: Vec<Tensor>,
            #[dp(buffer, shape = \"[channels]\", init = \"nn::Init::Const(rate)\")]
            mean: Tensor,
            #[dp(build = \"Block::new(path / k)\", count = \"2\")]
            blocks: Vec<Block>,
        }",
    ));
    assert!(code.contains("channels : i64 , rate : f64"));
    assert!(code.contains("Const (- 0.5)"));
    assert!(code.contains("rate : rate"));
    let at = |part: &str| code.find(part).unwrap_or_else(|| panic!("{part} in {code}"));
    assert!(at("f_var") < at("f_init") && at("f_init") < at("Block :: new (path / k)"));
}

#[test]
fn outputs_are_bounded_by_what_their_fields_mention() {
    let file = tensor_output("struct Out<T, U> { a: T, b: Vec<T>, #[dp(skip)] c: U }");
    assert!(errors(&file).is_empty());
    let clause = &impls(&file)[0].generics.where_clause;
    let clause = quote::quote!(#clause).to_string();
    assert!(clause.contains("T :") && !clause.contains("U :"), "{clause}");
}

#[test]
fn an_impl_block_is_kept_and_each_forward_is_checked() {
    let block = "impl<B: Body> Net<B> {
        fn new() -> Self { todo() }
        fn forward(&self, x: &Tensor) -> Tensor { x }
        fn forward_t<const N: usize>(&self, x: &Tensor) -> Result<[Tensor; N], E> { x }
        fn forward_lazy(&self) -> impl Iterator<Item = Tensor> { x }
        fn loss(&self) -> f64 { 0.0 }
    }";
    let file = attribute("", block);
    assert!(errors(&file).is_empty());
    let blocks = impls(&file);
    assert_eq!(blocks.len(), 3, "the block itself and two checks");
    assert_eq!(blocks[0], &syn::parse_str::<ItemImpl>(block).unwrap());
    assert!(text(&file).contains("__data_parallel__forward_t < const N : usize >"));
}

#[test]
fn associated_return_types_are_asked_of_their_trait() {
    let block = "impl Scorer for Net { type Out = T; fn forward(&self) -> Self::Out { x } }";
    assert!(text(&attribute("", block)).contains("< Self as Scorer > :: Out"));
}

#[test]
fn errors_come_all_at_once_with_impls_to_go_on() {
    let file = model(
        "#[dp(skip)] struct Net { vs: nn::VarStore, #[dp(nonsense)] a: Tensor,
                                  #[dp(param, buffer)] b: Tensor }",
    );
    assert_eq!(errors(&file).len(), 4);
    let names: Vec<_> = impls(&file).iter().map(|block| block.trait_.is_some()).collect();
    assert_eq!(names, [true, false], "a stub of the trait and one of `register`");
}

/// `(definition, part of the message)`; one error each.
const WRONG_MODELS: &[(&str, &str)] = &[
    ("union U { a: Block }", "a union cannot be walked"),
    ("struct N { #[dp(frozen)] a: T }", "expected one of `param`, `buffer`, `skip`, `rename`"),
    ("struct N { #[dp(ignore)] a: T }", "did you mean `skip`?"),
    ("struct N { #[dp(parameter)] a: T }", "did you mean `param`?"),
    ("struct N { #[dp(bound = \"\")] a: T }", "it belongs on the struct or enum itself"),
    ("#[dp(rename = \"x\")] struct N { a: T }", "it belongs on a field"),
    ("enum N { #[dp(skip)] A(T) }", "says nothing about a variant"),
    ("struct N { #[dp] a: T }", "write it as `#[dp(skip)]`"),
    ("struct N { #[dp(skip = 1)] a: T }", "takes no value"),
    ("struct N { #[dp(rename)] a: T }", "takes a value: `rename = \"..\"`"),
    ("struct N { #[dp(rename = head)] a: T }", "the value of `rename` goes in quotes"),
    ("struct N { #[dp(skip, skip)] a: T }", "was given before"),
    ("struct N { #[dp(param, buffer)] a: T }", "keep one of them"),
    ("struct N { #[dp(skip, name = \"a_{k}\")] a: Vec<T> }", "`name` has no effect"),
    ("struct N { #[dp(rename = \"a\", name = \"a_{k}\")] a: Vec<T> }", "keep one of them"),
    ("struct N { #[dp(rename = \"a.b\")] a: T }", "a dot separates"),
    ("struct N { #[dp(rename = \"\")] a: T }", "not empty"),
    ("struct N { #[dp(rename = \"a_{k}\")] a: Vec<T> }", "belongs in `name = \"a_{k}\"`"),
    ("struct N { #[dp(name = \"a\")] a: Vec<T> }", "needs one `{k}`"),
    ("struct N { #[dp(name = \"a_{i}\")] a: Vec<T> }", "needs one `{k}`"),
    ("struct N { #[dp(name = \"a_{k}\")] a: Tensor }", "use `rename`"),
    ("struct N { a: VarStore }", "the store that `Ddp::new(model, vs, ..)` takes"),
    ("struct N { a: Option<tch::nn::VarStore> }", "keep the `VarStore` beside it"),
    ("struct N<'a> { a: &'a nn::VarStore }", "mark this field `#[dp(skip)]`"),
    ("struct N { a: Vec<nn::Optimizer> }", "keep the `Optimizer` beside it"),
    ("struct N { #[dp(buffer)] a: usize }", "settings need no attribute"),
    ("#[dp(bound = \"B\")] struct N<B> { a: B }", "expected where-clauses"),
    ("struct N { #[dp(count = \"2\")] a: T }", "ask for it with `#[data_parallel(new(..))]`"),
    ("#[dp(new())] enum N { A(T) }", "write its constructor by hand"),
    ("#[dp(new)] struct N;", "takes the constructor's arguments"),
    ("#[dp(new(a: u8))] struct N { b: u8 }", "cannot make this field"),
    ("#[dp(new())] struct N { #[dp(param, shape = \"[1]\")] a: Tensor }", "with what the tensor"),
    (
        "#[dp(new())] struct N { #[dp(shape = \"[1]\", init = \"0.0\")] a: Tensor }",
        "say whether the tensor trains",
    ),
    (
        "#[dp(new())] struct N { #[dp(build = \"x\", init = \"0.0\")] a: Tensor }",
        "give its size with `shape",
    ),
    (
        "#[dp(new())] struct N { #[dp(param, shape = \"[1]\", init = \"0.0\")] a: Vec<Tensor> }",
        "give the number of its tensors",
    ),
    (
        "#[dp(new())] struct N { #[dp(build = \"x\", count = \"2\")] a: [Block; 2] }",
        "an array has its length already",
    ),
    ("#[dp(new())] struct N { #[dp(build = \"(\")] a: T }", "the quotes hold Rust code"),
];

#[test]
fn every_objection_to_a_model_says_what_to_do() {
    for (source, wanted) in WRONG_MODELS {
        let found = errors(&model(source));
        assert!(
            matches!(found.as_slice(), [one] if one.contains(wanted)),
            "{source}\nwanted {wanted:?}\nfound {found:#?}"
        );
    }
}

#[test]
fn skipping_silences_what_is_said_about_a_field() {
    for ty in ["nn::VarStore", "Option<nn::Optimizer>", "tch::Device"] {
        let source = format!("struct Agent {{ net: Block, #[dp(skip)] x: {ty} }}");
        assert!(errors(&model(&source)).is_empty(), "{ty}");
        assert_eq!(attribute("", &source).items.len(), 1, "{ty}: no warning either");
    }
}

#[test]
fn a_stored_device_is_warned_about_by_a_deprecated_constant() {
    let source = "struct Net { net: Block, #[cfg(gpu)] device: Device, maybe: Option<Block> }";
    assert!(errors(&model(source)).is_empty());
    let code = text(&attribute("", source));
    assert_eq!(code.matches("# [deprecated").count(), 1);
    assert!(code.contains("# [cfg (gpu)] const _"), "{code}");
    assert!(code.contains("`device` remembers one device"), "{code}");
}

#[test]
fn every_objection_to_an_output_says_what_to_do() {
    for (source, wanted) in [
        ("struct O { a: Tensor, b: f64 }", "return the tensor and read its number outside"),
        ("struct O { a: Option<Vec<(Tensor, String)>> }", "not a tensor"),
        ("enum O { A(Tensor), B { n: u8 } }", "not a tensor"),
        ("struct O { #[dp(param)] a: Tensor }", "`param` belongs on a model"),
        ("struct O { #[dp(build = \"x\")] a: Tensor }", "`build` belongs on a model"),
        ("#[dp(new())] struct O { a: Tensor }", "`new` belongs on a model"),
    ] {
        let found = errors(&tensor_output(source));
        assert!(
            matches!(found.as_slice(), [one] if one.contains(wanted)),
            "{source}\nwanted {wanted:?}\nfound {found:#?}"
        );
    }
    assert!(errors(&tensor_output("struct O { a: Tensor, #[dp(skip)] b: f64 }")).is_empty());
    assert!(errors(&tensor_output("struct O { a: HashMap<String, Tensor> }")).is_empty());
}

#[test]
fn a_misplaced_attribute_says_where_it_belongs() {
    for (item, wanted) in [
        ("fn model() -> u8 { 0 }", "goes to `Ddp::new` as it is"),
        ("trait Backbone {}", "not on a trait"),
        ("mod models { }", "not on a module"),
        ("type Net = u8;", "put it where the type is defined"),
        ("const X: u8 = 0;", "not on this item"),
        ("impl Net { fn forward(&self) {} }", "returns nothing"),
        ("impl Net { fn forward(&self) -> (Tensor, f64) { x } }", "not a tensor"),
    ] {
        let file = attribute("", item);
        let found = errors(&file);
        assert!(matches!(found.as_slice(), [one] if one.contains(wanted)), "{item}: {found:?}");
    }
    let file = attribute("new()", "impl Net { fn forward(&self) -> Tensor { x } }");
    assert!(errors(&file)[0].contains("belongs on the struct"));
    assert!(errors(&attribute("= 1", "struct N;"))[0].contains("expected"));
}

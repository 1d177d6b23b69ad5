//! Whole sessions: what a user of an editor sees.

use serde_json::{Value, json};

use crate::client::{Client, framed};

/// A fault that can be mended.
const MENDABLE: &str = "x = 1  # ddp-lint: allow(unknown-suppression)\n";

fn range(line: u32, start: u32, end: u32) -> Value {
    json!({ "start": { "line": line, "character": start },
            "end": { "line": line, "character": end } })
}

/// Applies the text edits of a workspace edit to the text of its only document.
fn applied(edit: &Value, text: &str) -> String {
    let changes = edit["changes"].as_object().expect("changes").values().next();
    let mut edits = changes.expect("one document").as_array().expect("a list").clone();
    edits.sort_by_key(|edit| {
        let start = &edit["range"]["start"];
        std::cmp::Reverse((start["line"].as_u64(), start["character"].as_u64()))
    });
    let offset = |position: &Value| {
        let line = position["line"].as_u64().expect("a line") as usize;
        let character = position["character"].as_u64().expect("a column") as usize;
        text.split_inclusive('\n').take(line).map(str::len).sum::<usize>() + character
    };
    edits.iter().fold(text.to_owned(), |mut new, edit| {
        let [start, end] = ["start", "end"].map(|side| offset(&edit["range"][side]));
        new.replace_range(start..end, edit["newText"].as_str().expect("a text"));
        new
    })
}

#[test]
fn a_fault_is_seen_mended_and_gone() {
    let mut client = Client::new(&[("a.py", "x = 1\n")], &json!({}));
    client.open("a.py", "x = 1\n");
    client.settle();
    assert!(client.published.is_empty(), "{:?}", client.published);
    client.change(
        "a.py",
        2,
        &json!([
            { "range": range(0, 5, 5), "text": "  # ddp-lint: allow(unknown-suppression)" },
        ]),
    );
    let list = client.wait_for_rules("a.py", &["unused-suppression"]);
    assert_eq!(list[0]["range"], range(0, 25, 44));
    assert_eq!(list[0]["severity"], 2);
    assert_eq!(list[0]["source"], "ddp-lint");
    assert_eq!(list[0]["tags"], json!([1]));
    let docs = list[0]["codeDescription"]["href"].as_str().expect("documentation");
    let docs = docs.strip_prefix("file://").expect("a file");
    let docs = std::fs::read_to_string(docs).expect("the documentation is there");
    assert!(docs.starts_with("# unused-suppression\n"), "{docs}");
    let actions = client.actions("a.py", &range(0, 30, 30), &Value::Null);
    let titles: Vec<&str> = actions.iter().filter_map(|action| action["title"].as_str()).collect();
    assert_eq!(
        titles,
        [
            "remove the suppression (unused-suppression)",
            "allow unused-suppression here",
            "explain unused-suppression",
            "mend all that ddp-lint can mend safely",
        ]
    );
    assert_eq!(actions[0]["isPreferred"], true);
    let mended = applied(&actions[0]["edit"], MENDABLE);
    assert_eq!(mended, "x = 1\n");
    assert_eq!(applied(&actions[3]["edit"], MENDABLE), mended);
    let allowed = applied(&actions[1]["edit"], MENDABLE);
    assert_eq!(allowed, MENDABLE.replace(')', ", unused-suppression)"));
    client.replace("a.py", 3, &allowed);
    client.wait_for_rules("a.py", &[]);
    client.replace("a.py", 4, &mended);
    client.settle();
    assert_eq!(client.published[&client.uri("a.py")], [Value::Null; 0]);
    assert_eq!(client.leave(), 0);
}

#[test]
fn a_change_in_one_file_changes_another() {
    let train = "from model import build\n\nif __name__ == \"__main__\":\n    \
                 model = build()\n    print(model.classes)\n";
    let bare = "import torch\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        \
                super().__init__()\n        self.classes = 10\n\ndef build():\n    return Net()\n";
    let wrapped = bare.replace("return Net()", "return torch.nn.DataParallel(Net())");
    let mut client = Client::new(&[("train.py", train), ("model.py", bare)], &json!({}));
    client.settle();
    assert!(client.published.is_empty(), "{:?}", client.published);
    // Nothing is written to the disk: the editor's text counts.
    client.open("model.py", bare);
    client.replace("model.py", 2, &wrapped);
    let list = client.wait_for_rules("train.py", &["attribute-of-wrapped-model"]);
    assert_eq!(list[0]["range"], range(4, 10, 23));
    client.wait_for_rules("model.py", &["data-parallel-in-use"]);
    client.open("train.py", train);
    let actions = client.actions("train.py", &range(4, 16, 16), &json!(["quickfix"]));
    let mended = applied(&actions[0]["edit"], train);
    assert_eq!(mended, train.replace("model.classes", "model.module.classes"));
    client.replace("train.py", 2, &mended);
    client.wait_for_rules("train.py", &[]);
    client.replace("train.py", 3, train);
    client.wait_for_rules("train.py", &["attribute-of-wrapped-model"]);
    client.close("model.py");
    client.wait_for_rules("train.py", &[]);
    client.wait_for_rules("model.py", &[]);
    std::fs::write(client.path("model.py"), wrapped).unwrap();
    let change = json!({ "changes": [{ "uri": client.uri("model.py"), "type": 2 }] });
    client.notify("workspace/didChangeWatchedFiles", &change);
    client.wait_for_rules("train.py", &["attribute-of-wrapped-model"]);
    assert_eq!(client.leave(), 0);
}

#[test]
fn files_come_and_go() {
    let mut client = Client::new(&[("a.py", MENDABLE)], &json!({}));
    client.wait_for_rules("a.py", &["unused-suppression"]);
    std::fs::write(client.path("b.py"), MENDABLE).unwrap();
    std::fs::remove_file(client.path("a.py")).unwrap();
    let changes = json!({ "changes": [
        { "uri": client.uri("a.py"), "type": 3 },
        { "uri": client.uri("b.py"), "type": 1 },
    ]});
    client.notify("workspace/didChangeWatchedFiles", &changes);
    client.wait_for_rules("a.py", &[]);
    client.wait_for_rules("b.py", &["unused-suppression"]);
    // A file that is on no disk yet.
    client.open("new/c.py", MENDABLE);
    client.wait_for_rules("new/c.py", &["unused-suppression"]);
    client.close("new/c.py");
    client.wait_for_rules("new/c.py", &[]);
}

#[test]
fn folders_come_and_go() {
    let mut client = Client::new(&[("a.py", MENDABLE)], &json!({}));
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("setup.py"), MENDABLE).unwrap();
    let folder = json!([{ "uri": crate::client::uri(other.path()), "name": "other" }]);
    let event =
        |added: &Value, removed: &Value| json!({ "event": { "added": added, "removed": removed } });
    client.notify("workspace/didChangeWorkspaceFolders", &event(&folder, &json!([])));
    let outside = other.path().join("setup.py");
    let outside = outside.to_str().unwrap();
    client.wait_for_rules(outside, &["unused-suppression"]);
    client.notify("workspace/didChangeWorkspaceFolders", &event(&json!([]), &folder));
    client.wait_for_rules(outside, &[]);
    client.wait_for_rules("a.py", &["unused-suppression"]);
}

#[test]
fn configurations_and_settings_take_effect() {
    let config = ("ddp-lint.toml", "ignore = [\"unused-suppression\"]\n");
    let mut client = Client::new(&[("a.py", MENDABLE), config], &json!({}));
    client.open("a.py", MENDABLE);
    client.settle();
    assert!(client.published.is_empty());
    let save = |client: &mut Client, text: &str| {
        std::fs::write(client.path("ddp-lint.toml"), text).unwrap();
        let change = json!({ "changes": [{ "uri": client.uri("ddp-lint.toml"), "type": 2 }] });
        client.notify("workspace/didChangeWatchedFiles", &change);
    };
    save(&mut client, "[rules]\nunused-suppression = \"error\"\n");
    let list = client.wait_for_rules("a.py", &["unused-suppression"]);
    assert_eq!(list[0]["severity"], 1);
    save(&mut client, "\nignroe = []\n");
    let mistakes = client.wait_for("ddp-lint.toml", |list| list.len() == 1);
    assert_eq!(mistakes[0]["range"], range(1, 0, 11));
    save(&mut client, "");
    client.wait_for("ddp-lint.toml", <[Value]>::is_empty);
    let settings = json!({ "settings": { "ddp-lint": { "ignore": ["unused-suppression"] } } });
    client.notify("workspace/didChangeConfiguration", &settings);
    client.wait_for_rules("a.py", &[]);
    let settings = json!({ "settings": { "ddp-lint": { "ignore": ["no-such-rule"] } } });
    client.notify("workspace/didChangeConfiguration", &settings);
    client.settle();
    assert!(client.shown[0].contains("unknown rule `no-such-rule`"), "{:?}", client.shown);
}

#[test]
fn settings_are_asked_for_and_files_watched_where_the_client_can() {
    let capabilities = json!({ "workspace": {
        "configuration": true,
        "didChangeWatchedFiles": { "dynamicRegistration": true },
    }});
    let mut client = Client::new(&[], &capabilities);
    client.settle();
    let methods: Vec<&str> = client.asked.iter().filter_map(|one| one["method"].as_str()).collect();
    assert_eq!(methods, ["client/registerCapability", "workspace/configuration"]);
    let options = json!({ "select": ["unknown-suppression"] });
    let mut client = Client::with_options(&[("a.py", MENDABLE)], &json!({}), &options);
    client.settle();
    assert!(client.published.is_empty());
}

#[test]
fn a_client_that_pulls_is_not_pushed() {
    let capabilities = json!({
        "textDocument": { "diagnostic": {} },
        "workspace": { "diagnostics": { "refreshSupport": true } },
    });
    let mut client = Client::new(&[("a.py", MENDABLE), ("b.py", "y = 2\n")], &capabilities);
    let pull = |client: &mut Client, path: &str, previous: &Value| {
        let document = json!({ "uri": client.uri(path) });
        let params = json!({ "textDocument": document, "previousResultId": previous });
        client.request("textDocument/diagnostic", &params)
    };
    let first = pull(&mut client, "a.py", &Value::Null);
    assert_eq!(first["kind"], "full");
    assert_eq!(first["items"][0]["code"], "unused-suppression");
    let again = pull(&mut client, "a.py", &first["resultId"]);
    assert_eq!((&again["kind"], &again["resultId"]), (&json!("unchanged"), &first["resultId"]));
    assert_eq!(pull(&mut client, "b.py", &Value::Null)["items"], json!([]));
    assert_eq!(pull(&mut client, "no/such.py", &Value::Null)["items"], json!([]));
    let all = client.request("workspace/diagnostic", &json!({ "previousResultIds": [] }));
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
    assert_eq!(all["items"][0]["uri"], client.uri("a.py"));
    client.open("a.py", "x = 1\n");
    let known = json!([{ "uri": client.uri("a.py"), "value": first["resultId"] }]);
    let all = client.request("workspace/diagnostic", &json!({ "previousResultIds": known }));
    assert_eq!(all["items"][0]["kind"], "full");
    assert_eq!(all["items"][0]["items"], json!([]));
    client.settle();
    assert!(client.published.is_empty());
    let n_refreshes = |client: &Client| {
        let is_refresh = |one: &&Value| one["method"] == "workspace/diagnostic/refresh";
        client.asked.iter().filter(is_refresh).count()
    };
    // After its own changes a client asks without being told to; of others it cannot know.
    let before = n_refreshes(&client);
    client.replace("a.py", 2, MENDABLE);
    client.settle();
    assert_eq!(n_refreshes(&client), before);
    std::fs::write(client.path("b.py"), MENDABLE).unwrap();
    let change = json!({ "changes": [{ "uri": client.uri("b.py"), "type": 2 }] });
    client.notify("workspace/didChangeWatchedFiles", &change);
    client.settle();
    assert_eq!(n_refreshes(&client), before + 1);
}

#[test]
fn news_are_told_even_when_a_request_comes_in_between() {
    let mut client = Client::new(&[("a.py", "x = 1\n")], &json!({}));
    client.open("a.py", "x = 1\n");
    client.settle();
    let document = json!({ "uri": client.uri("a.py"), "version": 2 });
    let at = json!({ "textDocument": document, "position": { "line": 0, "character": 0 } });
    let change = json!({ "textDocument": document, "contentChanges": [{ "text": MENDABLE }] });
    // In one write: the answer to the hover needs the findings before they were told.
    let messages = [
        json!({ "jsonrpc": "2.0", "method": "textDocument/didChange", "params": change }),
        json!({ "jsonrpc": "2.0", "id": 900, "method": "textDocument/hover", "params": at }),
    ];
    let batch: String = messages.iter().map(framed).collect();
    client.send_bytes(batch.as_bytes());
    client.wait_for_rules("a.py", &["unused-suppression"]);
}

#[test]
fn columns_are_those_the_client_counts() {
    let line = "é🦀 = 1  # ddp-lint: allow(oops)\n";
    let start = |encodings: &Value| {
        let capabilities = json!({ "general": { "positionEncodings": encodings } });
        let mut client = Client::new(&[("a.py", line)], &capabilities);
        let list = client.wait_for_rules("a.py", &["unknown-suppression"]);
        list[0]["range"]["start"]["character"].as_u64().unwrap()
    };
    assert_eq!(start(&json!(["utf-8", "utf-16"])), 30);
    assert_eq!(start(&json!(["utf-16"])), 27);
    assert_eq!(start(&json!(["utf-32", "utf-8"])), 26);
    assert_eq!(start(&json!(["utf-7"])), 27);
}

#[test]
fn hover_tells_what_a_finding_and_a_suppression_mean() {
    let text = "x = 1  # ddp-lint: allow(unknown-suppression, unused-suppression)\n";
    let mut client = Client::new(&[("a.py", MENDABLE), ("b.py", text)], &json!({}));
    let hover = |client: &mut Client, path: &str, line: u32, character: u32| {
        let document = json!({ "uri": client.uri(path) });
        let position = json!({ "line": line, "character": character });
        let params = json!({ "textDocument": document, "position": position });
        client.request("textDocument/hover", &params)
    };
    let finding = hover(&mut client, "a.py", 0, 30);
    let words = finding["contents"]["value"].as_str().unwrap();
    assert!(words.starts_with("**unused-suppression** (warning, noise): "), "{words}");
    assert_eq!(finding["range"], range(0, 25, 44));
    let suppression = hover(&mut client, "b.py", 0, 50);
    let words = suppression["contents"]["value"].as_str().unwrap();
    assert!(words.starts_with("**unused-suppression** is allowed here"), "{words}");
    assert_eq!(hover(&mut client, "a.py", 0, 2), Value::Null);
    assert_eq!(hover(&mut client, "a.py", 99, 99), Value::Null);
    assert_eq!(hover(&mut client, "none.py", 0, 0), Value::Null);
}

#[test]
fn explanations_open_as_documents_where_the_client_can() {
    let capabilities = json!({ "window": { "showDocument": { "support": true } } });
    let explain = json!({ "command": "ddp-lint.explain", "arguments": ["unused-suppression"] });
    let mut client = Client::new(&[], &capabilities);
    client.request("workspace/executeCommand", &explain);
    client.settle();
    assert_eq!(client.asked[0]["method"], "window/showDocument");
    let mut client = Client::new(&[], &json!({}));
    client.request("workspace/executeCommand", &explain);
    client.settle();
    assert!(client.shown[0].contains("suppresses nothing"), "{:?}", client.shown);
    let wrong = json!({ "command": "ddp-lint.explain", "arguments": [7] });
    assert_eq!(client.refusal("workspace/executeCommand", &wrong), -32602);
}

#[test]
fn actions_come_in_the_kinds_that_are_asked_for() {
    let mut client = Client::new(&[("a.py", MENDABLE)], &json!({}));
    let mut kinds = |only: Value| {
        let actions = client.actions("a.py", &range(0, 0, 45), &only);
        let kinds = actions.iter().map(|action| action["kind"].as_str().unwrap().to_owned());
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(kinds(json!(["source.fixAll"])), ["source.fixAll.ddp-lint"]);
    assert_eq!(kinds(json!(["source.fixAll.other"])), [""; 0]);
    assert_eq!(kinds(json!(["quickfix"])), ["quickfix"; 3]);
    assert_eq!(kinds(json!(["refactor"])), [""; 0]);
}

#[test]
fn edits_name_the_version_where_the_client_can() {
    let capabilities = json!({ "workspace": { "workspaceEdit": { "documentChanges": true } } });
    let mut client = Client::new(&[("a.py", MENDABLE)], &capabilities);
    client.open("a.py", MENDABLE);
    client.replace("a.py", 7, MENDABLE);
    let actions = client.actions("a.py", &range(0, 30, 30), &json!(["source.fixAll"]));
    let change = &actions[0]["edit"]["documentChanges"][0];
    assert_eq!(change["textDocument"], json!({ "uri": client.uri("a.py"), "version": 7 }));
}

#[test]
fn requests_that_were_taken_back_are_not_served() {
    let mut client = Client::new(&[("a.py", MENDABLE)], &json!({}));
    client.settle();
    // All in one write, so that the cancellation is there when the request is looked at.
    let message = |value: Value| framed(&value);
    let document = json!({ "uri": client.uri("a.py") });
    let params = json!({ "textDocument": document, "position": { "line": 0, "character": 30 } });
    let hover = |id: i64| {
        message(
            json!({ "jsonrpc": "2.0", "id": id, "method": "textDocument/hover", "params": params }),
        )
    };
    let cancel = |id: i64| {
        message(json!({ "jsonrpc": "2.0", "method": "$/cancelRequest", "params": { "id": id } }))
    };
    let batch = format!("{}{}{}{}", hover(901), hover(902), cancel(902), hover(903));
    client.send_bytes(batch.as_bytes());
    assert!(client.answer_to(901)["result"].is_object());
    let second = client.answer_to(902);
    // Whether the reader was fast enough is a matter of luck; a wrong answer is not.
    assert!(second["error"]["code"] == -32800 || second["result"].is_object(), "{second}");
    assert!(client.answer_to(903)["result"].is_object());
}

#[test]
fn the_order_of_a_session_is_kept() {
    let mut client = Client::started(&[]);
    assert_eq!(client.refusal("textDocument/hover", &json!({})), -32002);
    client.notify("textDocument/didOpen", &json!({}));
    assert_eq!(client.refusal("initialize", &json!({ "capabilities": 5 })), -32602);
    client.request("initialize", &json!({ "capabilities": {} }));
    assert_eq!(client.refusal("no/such/method", &json!({})), -32601);
    assert_eq!(client.refusal("textDocument/hover", &json!({})), -32602);
    client.request("shutdown", &Value::Null);
    assert_eq!(client.refusal("textDocument/hover", &json!({})), -32600);
    client.notify("exit", &Value::Null);
    assert_eq!(client.ended(), 0);
    let mut client = Client::new(&[], &json!({}));
    client.notify("exit", &Value::Null);
    assert_eq!(client.ended(), 1, "leaving without `shutdown` is no success");
}

//! Nonsense: the server answers or ignores, never exits, and does not grow.

use serde_json::{Value, json};

use crate::client::Client;

const N_MESSAGES: usize = 10_000;

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick<'p, T>(&mut self, from: &'p [T]) -> &'p T {
        &from[self.below(from.len())]
    }
}

const METHODS: [&str; 14] = [
    "initialize",
    "initialized",
    "textDocument/didOpen",
    "textDocument/didChange",
    "textDocument/didClose",
    "textDocument/codeAction",
    "textDocument/hover",
    "textDocument/diagnostic",
    "workspace/diagnostic",
    "workspace/executeCommand",
    "workspace/didChangeWatchedFiles",
    "workspace/didChangeConfiguration",
    "$/cancelRequest",
    "no/such/method",
];

const TEXTS: [&str; 6] = [
    "",
    "x = 1  # ddp-lint: allow(oops)\n",
    "if rank = 0:\n",
    "é🦀\r\n\r",
    "import torch\nmodel = torch.nn.DataParallel(net)\n",
    "\u{0}\u{feff}((((",
];

/// Not one of those that the client counts up.
fn id(random: &mut Random) -> usize {
    1_000_000 + random.below(100)
}

fn position(random: &mut Random) -> Value {
    let numbers = [json!(0), json!(1), json!(3), json!(4_294_967_295_u32), json!(-1), json!("x")];
    json!({ "line": random.pick(&numbers), "character": random.pick(&numbers) })
}

fn params(random: &mut Random, uris: &[Value]) -> Value {
    let range = json!({ "start": position(random), "end": position(random) });
    let text = json!(random.pick(&TEXTS));
    let change = json!({ "range": range, "text": text });
    let changes = [json!([change]), json!([{ "text": text }]), json!(5), json!([change, change])];
    let uri = random.pick(uris).clone();
    let settings =
        [json!({ "ddp-lint": { "ignore": ["x"] } }), json!(null), json!({ "ddp-lint": {} })];
    let mut params = json!({
        "textDocument": {
            "uri": uri,
            "languageId": "python",
            "version": random.below(9),
            "text": text,
        },
        "contentChanges": random.pick(&changes),
        "position": position(random),
        "range": range,
        "context": { "diagnostics": [] },
        "changes": [{ "uri": uri, "type": random.below(5) }],
        "settings": random.pick(&settings),
        "previousResultIds": [{ "uri": uri, "value": "x" }],
        "command": "ddp-lint.explain",
        "arguments": ["unused-suppression"],
        "id": id(random),
    });
    if random.below(4) == 0 {
        let keys: Vec<String> = params.as_object().expect("an object").keys().cloned().collect();
        params[random.pick(&keys).as_str()] = json!([{}]);
    }
    params
}

/// One frame, sound or not.
fn frame(random: &mut Random, uris: &[Value]) -> Vec<u8> {
    let mut message = json!({
        "jsonrpc": "2.0",
        "method": random.pick(&METHODS),
        "params": params(random, uris),
    });
    if random.below(2) == 0 {
        message["id"] = json!(id(random));
    }
    let mut body = message.to_string().into_bytes();
    match random.below(20) {
        0 => body.truncate(body.len() / 2),
        1 => body = b"[1, 2, 3]".to_vec(),
        2 => body = vec![0xff; 10],
        _ => {}
    }
    let mut frame = match random.below(30) {
        0 => b"Content-Length: nonsense\r\n\r\n".to_vec(),
        1 => b"some: header\r\n\r\n".to_vec(),
        2 => b"Content-Length: 99999999999999999999\r\n\r\n".to_vec(),
        _ => format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes(),
    };
    frame.extend(body);
    // What follows a broken frame must find a line of its own.
    frame.extend(b"\r\n");
    frame
}

#[test]
fn ten_thousand_random_messages_leave_the_server_whole() {
    let mut client = Client::new(&[("a.py", TEXTS[1]), ("b.py", TEXTS[4])], &json!({}));
    client.settle();
    let uris = [
        json!(client.uri("a.py")),
        json!(client.uri("b.py")),
        json!(client.uri("gone/c.py")),
        json!(client.uri("")),
        json!("untitled:x"),
        json!("file:///%FF%FE"),
        json!("not a uri"),
        json!(7),
    ];
    let mut random = Random(7);
    let mut after_half = 0;
    for n in 0..N_MESSAGES {
        let frame = frame(&mut random, &uris);
        client.send_bytes(&frame);
        if n % 100 == 99 {
            client.settle();
        }
        if n == N_MESSAGES / 2 {
            after_half = resident_kib(client.process());
        }
    }
    client.replace("a.py", 1, "");
    client.open("a.py", TEXTS[1]);
    client.settle();
    client.wait_for_rules("a.py", &["unknown-suppression"]);
    let at_end = resident_kib(client.process());
    assert!(at_end < after_half + 8 * 1024, "grew from {after_half} to {at_end} KiB");
    assert_eq!(client.leave(), 0);
}

#[test]
fn a_deleted_folder_and_a_huge_document_are_survived() {
    let mut client = Client::new(&[("sub/a.py", TEXTS[1])], &json!({}));
    client.wait_for_rules("sub/a.py", &["unknown-suppression"]);
    std::fs::remove_dir_all(client.path("sub")).expect("a folder");
    let change = json!({ "changes": [{ "uri": client.uri("sub"), "type": 3 }] });
    client.notify("workspace/didChangeWatchedFiles", &change);
    client.wait_for_rules("sub/a.py", &[]);
    client.open("b.py", &TEXTS[1].repeat(10_000));
    client.wait_for("b.py", |list| list.len() == 10_000);
    client.change(
        "b.py",
        2,
        &json!([{
            "range": { "start": { "line": 1, "character": 0 },
                       "end": { "line": 10_000, "character": 0 } },
            "text": "",
        }]),
    );
    client.wait_for("b.py", |list| list.len() == 1);
    let deep = format!("x = {}1{}\n", "(".repeat(100_000), ")".repeat(100_000));
    client.replace("b.py", 3, &deep);
    client.settle();
    assert_eq!(client.leave(), 0);
}

/// Memory of a process; 0 where the system does not tell.
fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

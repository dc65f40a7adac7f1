//! Chat templates in the style of the models that we serve, as directories and files bring them.

use serde_json::{Map, Value, json};
use sluice_models::{Architecture, ChatTemplate, TemplateError, TensorType};

use super::{Scratch, tiny};

/// The model's template, given as `tokenizer_config.json`'s `chat_template`.
fn compile(template: &Value) -> Result<ChatTemplate, String> {
    let scratch = Scratch::new();
    tiny(Architecture::Llama, TensorType::F32).write_dir(scratch.path());
    let config = json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>", "special": true},
        "chat_template": template,
    });
    scratch.write("tokenizer_config.json", config.to_string().as_bytes());
    scratch.open("").map(|model| model.template.unwrap())
}

fn render(
    template: &str,
    messages: &Value,
    tools: Option<&Value>,
) -> Result<String, TemplateError> {
    let template = compile(&template.into()).unwrap();
    let tools = tools.map(|tools| tools.as_array().unwrap().as_slice());
    template.render(messages.as_array().unwrap(), tools, true, &Map::new())
}

fn text(template: &str, context: Value) -> String {
    let Value::Object(extra) = context else { panic!("not an object") };
    compile(&template.into()).unwrap().render(&[], None, false, &extra).unwrap()
}

const LLAMA3: &str = include_str!("templates/llama3.jinja");

#[test]
fn llama_3_with_a_tool_call() {
    let messages = json!([
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Weather in Zürich?\n"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {
            "name": "weather", "arguments": "{\"city\":\"Zürich\",\"days\":[1,2]}"}}]},
        {"role": "tool", "content": {"c": 1.5, "ok": true, "note": null}},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {}}}]);
    assert_eq!(
        render(LLAMA3, &messages, Some(&tools)).unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n{\n    \"type\": \
         \"function\",\n    \"function\": {\n        \"name\": \"weather\",\n        \
         \"parameters\": {}\n    }\n}\n\nBe brief.<|eot_id|><|start_header_id|>user\
         <|end_header_id|>\n\nWeather in Zürich?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"weather\", \
         \"parameters\": {\"city\": \"Zürich\", \"days\": [1, 2]}}<|eot_id|><|start_header_id|>\
         ipython<|end_header_id|>\n\n{\"c\": 1.5, \"ok\": true, \"note\": null}<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let twice = json!([{"role": "assistant", "tool_calls": [1, 2]}]);
    let error = render(LLAMA3, &twice, None).unwrap_err();
    assert!(matches!(error, TemplateError::Raised(message)
        if message == "This model only supports single tool-calls at once!"));
}

const MISTRAL: &str = include_str!("templates/mistral.jinja");

#[test]
fn mistral_insists_on_alternating_roles() {
    let user = |content: &str| json!({"role": "user", "content": content});
    let messages = json!([user("a"), {"role": "assistant", "content": "b"}, user("c <d> & \"e\"")]);
    let rendered = render(MISTRAL, &messages, None).unwrap();
    assert_eq!(rendered, "<s>[INST] a [/INST]b</s>[INST] c <d> & \"e\" [/INST]");
    let error = render(MISTRAL, &json!([user("a"), user("b")]), None).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised(_)), "{error}");
    let message = "Conversation roles must alternate user/assistant/user/assistant/...";
    assert_eq!(error.to_string(), message);
}

const QWEN: &str = include_str!("templates/qwen.jinja");

#[test]
fn qwen_with_tools_and_thinking_taken_out() {
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>hm</think>\n\nYes", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"<x> 'y'\"}"}}]},
        {"role": "user", "content": "<tool_response>1</tool_response>"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "d & <e>"}}]);
    let template = compile(&QWEN.into()).unwrap();
    let extra = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let (messages, tools) = (messages.as_array().unwrap(), tools.as_array().unwrap());
    assert_eq!(
        template.render(messages, Some(tools), true, &extra).unwrap(),
        "<|im_start|>system\n# Tools\n\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \
         \"f\", \"description\": \"d & <e>\"}}\n</tools><|im_end|>\n<|im_start|>user\nq<|im_end|>\n\
         <|im_start|>assistant\nYes\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \
         \"a\": \"<x> 'y'\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>1\
         </tool_response><|im_end|>\n0<|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn json_is_written_as_python_writes_it() {
    let value = json!({"v": {
        "e": [], "o": {}, "n": null, "t": [true, false], "s": "\"\\\n\u{1}é😀/<&>'",
        "f": [1.0, 0.1, 1e16, 1.5e-7, 123456789012345680.0, 0.0001, -2.5e300], "i": [-3, 7],
    }});
    assert_eq!(
        text("{{ v | tojson }}", value.clone()),
        "{\"e\": [], \"o\": {}, \"n\": null, \"t\": [true, false], \"s\": \
         \"\\\"\\\\\\n\\u0001é😀/<&>'\", \"f\": [1.0, 0.1, 1e+16, 1.5e-07, 1.2345678901234568e+17, \
         0.0001, -2.5e+300], \"i\": [-3, 7]}"
    );
    let small = json!({"v": {"a": [1, {"b": "é"}], "c": {}}});
    assert_eq!(
        text("{{ v | tojson(indent=2) }}", small.clone()),
        "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"é\"\n    }\n  ],\n  \"c\": {}\n}"
    );
    assert_eq!(
        text("{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}", small),
        "{\"a\":[1,{\"b\":\"\\u00e9\"}],\"c\":{}}"
    );
}

#[test]
fn python_habits_work() {
    let value = json!({"d": {"a": 1, "b": 2}, "s": " Hi there ", "l": ["x", "y"], "t": true});
    for (template, expected) in [
        ("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"),
        ("{{ s.strip().upper() }}|{{ s.split()|join('-') }}", "HI THERE|Hi-there"),
        ("{{ d.get('z', 'none') }}{{ d.keys()|list|length }}", "none2"),
        ("{{ t }} {{ none }} {{ not t }} {{ missing }}", "True None False "),
        ("{% for x in l %}{% if x == 'y' %}{% break %}{% endif %}{{ x }}{% endfor %}", "x"),
        ("a\n  {% if t %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{ '<&>' }}{{ l[-1] }}{{ s.replace(' ', '') }}", "<&>yHithere"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('q') }}", "[q]"),
    ] {
        assert_eq!(text(template, value.clone()), expected, "{template}");
    }
    let date = text("{{ strftime_now('%d %b %Y') }}", json!({}));
    let parts: Vec<&str> = date.split(' ').collect();
    assert!(parts.len() == 3 && parts[0].len() == 2 && parts[2].parse::<u32>().unwrap() > 2024);
}

#[test]
fn arguments_cannot_replace_the_conversation() {
    let template = compile(&"{{ messages|length }}{{ bos_token }}{{ more }}".into()).unwrap();
    let extra = json!({"messages": [1, 2], "bos_token": "!", "more": "yes"});
    let Value::Object(extra) = extra else { panic!("not an object") };
    assert_eq!(template.render(&[], None, true, &extra).unwrap(), "0<s>yes");
}

#[test]
fn a_template_cannot_run_for_ever() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    for template in
        [endless, deep, "{{ 1 + messages }}", "{{ none.x.y }}", "{{ strftime_now('%') }}"]
    {
        let error = render(template, &json!([]), None).unwrap_err();
        assert!(matches!(error, TemplateError::Failed(_)), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn named_templates_and_files() {
    let named = json!([{"name": "default", "template": "plain"},
                       {"name": "tool_use", "template": "tools"}]);
    let template = compile(&named).unwrap();
    assert_eq!(template.render(&[], None, true, &Map::new()).unwrap(), "plain");
    assert_eq!(template.render(&[], Some(&[json!(1)]), true, &Map::new()).unwrap(), "tools");
    let error = compile(&json!([{"name": "rag", "template": "x"}])).unwrap_err();
    assert!(error.contains("chat_template: has no template named default"), "{error}");
    let error = compile(&"one\ntwo {{ three\n".into()).unwrap_err();
    assert!(error.starts_with("tokenizer_config.json: chat_template: line "), "{error}");

    let scratch = Scratch::new();
    tiny(Architecture::Llama, TensorType::F32).write_dir(scratch.path());
    scratch.write("chat_template.jinja", b"from the file {{ eos_token }}");
    let template = scratch.open("").unwrap().template.unwrap();
    let rendered = template.render(&[], None, true, &Map::new()).unwrap();
    assert_eq!(rendered, "from the file <|end|>");
    scratch.write("chat_template.jinja", &vec![b'x'; 2 << 20]);
    assert!(scratch.open("").unwrap_err().contains("has 2097152 bytes, more than 1048576"));
}

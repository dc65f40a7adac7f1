//! Precedence, round trip and error messages of the configuration.

use super::*;

fn table(text: &str) -> toml::Table {
    text.parse().expect("test TOML")
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let file = file("port = 9000\nmax_num_seqs = 8\n[class.latency]\nslo_e2e = \"9s\"\n");
    let flags = table("port = 9001\n[class.latency]\nslo_ttft = \"2s\"\n");
    let config = Config::resolve(Some(file.path()), flags).expect("valid");
    assert_eq!((config.port, config.max_num_seqs), (9001, 8));
    let latency = &config.class.latency;
    assert_eq!(latency.slo_ttft, Target::Within(Duration::from_secs(2)));
    assert_eq!(latency.slo_e2e, Target::Within(Duration::from_secs(9)));
    assert_eq!(latency.slo_tpot, Target::Auto);
    assert_eq!(config.class.throughput, Classes::default().throughput);
}

#[test]
fn what_is_printed_resolves_to_the_same_configuration() {
    let flags = table(
        "model = \"m\"\nkv_cache_memory = \"512MiB\"\ngrace = \"90s\"\n\
         [class.throughput]\nsafety_factor = 0.75\n\
         [model_alias.\"m-batch\"]\nclass = \"throughput\"",
    );
    let config = Config::resolve(None, flags).expect("valid");
    let printed = file(&config.to_toml().expect("printable"));
    assert_eq!(Config::resolve(Some(printed.path()), toml::Table::new()).expect("valid"), config);
}

#[test]
fn keys_are_never_printed() {
    let config = Config::resolve(None, table("api_key = [\"secret\"]")).expect("valid");
    assert!(!config.to_toml().expect("printable").contains("secret"));
}

/// The error that a file with this text causes.
fn refused(text: &str) -> String {
    let file = file(text);
    let resolved = Config::resolve(Some(file.path()), toml::Table::new());
    format!("{:#}", resolved.expect_err(text))
}

/// Numbers at both ends of what they may be, and just beyond.
#[test]
fn numbers_are_held_to_their_ranges() {
    for (key, allowed, beyond) in [
        ("max_num_seqs", ["1", "512"], ["0", "4097"]),
        ("max_num_batched_tokens", ["32", "1048576"], ["31", "1048577"]),
        ("max_model_len", ["2", "100000"], ["1", "0"]),
        ("simulated.block_size", ["1", "1024"], ["0", "1025"]),
        ("threads", ["1", "1024"], ["0", "1025"]),
        ("overload_status", ["429", "529"], ["428", "530"]),
        ("retry_after_scale", ["0.1", "10.0"], ["0.09", "nan"]),
        ("retry_budget", ["0.0", "10.0"], ["-0.1", "10.1"]),
        ("kind_strength", ["0.0", "1.0"], ["-0.1", "1.1"]),
        ("kind_fairness", ["0.0", "1.0"], ["nan", "1.1"]),
        ("latency_share", ["0.0", "0.99"], ["-0.1", "1.0"]),
        ("displacement_budget", ["0.0", "1.0"], ["-0.1", "1.1"]),
        ("body_limit", ["\"1KiB\"", "\"1GiB\""], ["1023", "\"2GiB\""]),
        ("record_max_size", ["\"16MiB\"", "\"1024GiB\""], ["\"15MiB\"", "\"1025GiB\""]),
        ("coordinator_replicas", ["1", "4096"], ["0", "4097"]),
        ("max_connections", ["1", "65536"], ["0", "65537"]),
        ("scaling.target", ["0.1", "1.0"], ["0.09", "1.1"]),
        ("scaling.min_replicas", ["1", "64"], ["0", "65"]),
        ("scaling.max_replicas", ["1", "10000"], ["0", "10001"]),
        ("scaling.cold_start", ["\"0s\"", "\"1h\""], ["\"1h 1s\"", "\"2h\""]),
        ("class.latency.max_waiting", ["1", "65536"], ["0", "65537"]),
        ("class.throughput.max_num_seqs", ["1", "32"], ["0", "33"]),
        ("class.latency.slots_kept", ["0", "31"], ["32", "33"]),
        ("class.throughput.kv_share", ["0.001", "1.0"], ["0.0", "1.001"]),
        ("class.latency.safety_factor", ["0.05", "1.0"], ["0.04", "1.1"]),
        ("tenant.acme.reserved", ["0.0", "1.0"], ["-0.1", "1.1"]),
        ("tenant.acme.max_share", ["0.001", "1.0"], ["0.0", "1.1"]),
        ("tenant.acme.max_requests", ["1", "100000"], ["0", "0"]),
    ] {
        for value in allowed {
            let resolved = Config::resolve(None, table(&format!("{key} = {value}")));
            assert!(resolved.is_ok(), "{key} = {value}: {resolved:?}");
        }
        let name = key.rsplit('.').next().unwrap_or(key);
        for value in beyond {
            let error = refused(&format!("{key} = {value}"));
            assert!(error.contains(name), "{key} = {value}: {error}");
        }
    }
}

#[test]
fn what_is_wrong_with_a_class_is_said_by_its_key() {
    let twice = "[class.latency]\nroutes = [\"/v1/completions\"]\n\
        [class.throughput]\nroutes = [\"/v1/chat/completions\", \"/v1/completions\"]";
    let again = "routes = [\"/v1/completions\", \"/v1/completions\"]";
    let auto = "only slo_tpot can be `auto`";
    for (text, parts) in [
        ("[class.bulk]\nmax_waiting = 1", ["bulk", "latency"]),
        ("[class.latency]\nmax_seqs = 1", ["max_seqs", "max_num_seqs"]),
        ("class.latency.slo_ttft = \"auto\"", ["class.latency", auto]),
        ("class.throughput.slo_e2e = \"auto\"", ["class.throughput", auto]),
        ("class.latency.slo_tpot = \"4x\"", ["slo_tpot", "1500ms"]),
        ("class.latency.safety_factor = \"some\"", ["safety_factor", "between 0.05 and 1"]),
        ("max_num_seqs = 8\nclass.latency.slots_kept = 8", ["class.latency.slots_kept", "is 8"]),
        ("max_num_seqs = 8\nclass.latency.max_num_seqs = 9", ["class.latency.max_num", "is 8"]),
        ("class.latency.routes = \"/v1/completions\"", ["routes", "sequence"]),
        ("class.latency.routes = [\"/v2\"]", ["class.latency.routes", "/v1/chat/completions and"]),
        ("class.throughput.routes = [\"/tokenize\"]", ["class.throughput.routes", "generated"]),
        (twice, ["class.throughput.routes", "class.latency.routes already; leave it in one"]),
        (&format!("[class.throughput]\n{again}"), ["class.throughput.routes", "leave it in one"]),
        ("default_class = \"bulk\"", ["default_class", "throughput"]),
        ("model_alias.m.class = \"bulk\"", ["class", "throughput"]),
        ("model_alias.m.klass = \"latency\"", ["klass", "class"]),
    ] {
        let error = refused(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_with_a_tenant_is_said_by_its_key() {
    let tenants = |count: usize, settings: fn(usize) -> String| {
        (0..count).map(|i| format!("[tenant.t{i}]\n{}\n", settings(i))).collect::<String>()
    };
    let nothing = |_| String::new();
    let tier = |i| format!("tier = \"tier-{i}\"");
    let tenth = |_| "reserved = 0.1".to_owned();
    let same_key = |_| "api_keys = [\"k\"]".to_owned();
    for text in [tenants(255, nothing), tenants(15, tier), tenants(10, tenth)] {
        assert!(Config::resolve(None, table(&text)).is_ok());
    }
    let long = format!("[tenant.{}]", "a".repeat(65));
    let long_tier = format!("[tenant.a]\ntier = \"{}\"", "a".repeat(65));
    let auto = "only slo_tpot can be `auto`";
    for (text, parts) in [
        (tenants(256, nothing).as_str(), ["256", "at most 255"]),
        (&tenants(16, tier), ["tenant.*.tier", "at most 15"]),
        (&tenants(11, tenth), ["tenant.*.reserved are 1.100", "at most 1"]),
        (&tenants(2, same_key), ["tenant.t1.api_keys", "listed twice"]),
        ("api_key = [\"k\"]\ntenant.a.api_keys = [\"k\"]", ["tenant.a.api_keys", "twice"]),
        ("tenant.a.api_keys = [\"\"]", ["tenant.a.api_keys", "empty key"]),
        ("api_key = [\"\"]", ["api_key must not be empty", "run without keys"]),
        ("[tenant.\"a b\"]", ["a b", "1 to 64 letters"]),
        ("[tenant.\"\"]", ["tenant", "1 to 64 letters"]),
        (&long, ["tenant", "1 to 64 letters"]),
        (&long_tier, ["tenant.a.tier", "1 to 64 letters"]),
        ("tenant.a.tier = \"\"", ["tenant.a.tier", "1 to 64 letters"]),
        ("[tenant.a]\nreserved = 0.5\nmax_share = 0.4", ["tenant.a.max_share", "at least its"]),
        ("tenant.a.max_share = nan", ["tenant.a.max_share", "0.001 to 1"]),
        ("tenant.a.reserved = nan", ["tenant.a.reserved", "0 to 1"]),
        ("tenant.a.share = 0.5", ["share", "max_share"]),
        ("tenant.a.default_class = \"bulk\"", ["default_class", "throughput"]),
        ("tenant.a.class.latency.slo_ttft = \"auto\"", ["tenant.a.class.latency", auto]),
        ("tenant.a.class.throughput.slo_e2e = \"auto\"", ["tenant.a.class.throughput", auto]),
        ("tenant.a.class.latency.max_waiting = 1", ["max_waiting", "slo_ttft"]),
    ] {
        let error = refused(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_elsewhere_is_said_by_its_key() {
    for (text, parts) in [
        ("coordinator_prefix = \"{a}:\"", ["coordinator_prefix", "no braces"]),
        ("max_num_seqs = 64\nmax_num_batched_tokens = 63", ["max_num_batched_tokens", "at least"]),
        ("scaling.min_replicas = 9\nscaling.max_replicas = 8", ["min_replicas", "max_replicas"]),
        ("runner = \"simulated\"\nprofile = \"/no/such.toml\"", ["/no/such.toml", "profile"]),
        ("simulated.cost.fixed_ms = 5", ["fixed_ms", "fixed_ns"]),
    ] {
        let error = refused(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    let missing = Config::resolve(Some(Path::new("/no/such.toml")), toml::Table::new());
    assert!(format!("{:#}", missing.expect_err("no file")).contains("/no/such.toml"));
}

#[test]
fn a_bad_file_is_reported_by_name_and_key() {
    for (text, named) in [
        ("max_num_seq = 3", "max_num_seq"),
        ("[class.latency]\nslo_tftt = \"1s\"", "slo_tftt"),
        ("[class.latency]\nslo_ttft = \"soon\"", "soon"),
        ("overload_status = 418", "overload_status"),
        ("scheduling_policy = \"lifo\"", "scheduling_policy"),
        ("admission = \"queue-cap\"", "such as queue-cap=64"),
        ("[class.latency]\nslo_ttft = \"auto\"", "class.latency"),
        ("max_num_seqs = 0", "max_num_seqs"),
        // Both are 0x4eac0c95540867e4.
        ("[tenant.8yn0iYCKYHlIj4-BwPqk]\n[tenant.GReLUrM4wMqfg9yzV3KQ]", "the same number"),
        ("served_model_name = [\"a\"]\n[model_alias.a]\nclass = \"latency\"", "model_alias"),
    ] {
        let file = file(text);
        let error = Config::resolve(Some(file.path()), toml::Table::new()).unwrap_err();
        assert!(format!("{error:#}").contains(named), "{error:#}");
    }
}

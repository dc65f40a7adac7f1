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

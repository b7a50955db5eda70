//! `microslice check`, on whatever host runs the tests.

use crate::common::{microslice, text};
use serde_json::Value;

fn succeed(arguments: &[&str]) -> String {
    let output = microslice(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn survey() -> Value {
    serde_json::from_str(&succeed(&["check", "--json"])).expect("JSON")
}

#[test]
fn each_command_can_work_here_or_says_why_not() {
    let survey = survey();
    let said = succeed(&["check"]);
    let commands = survey["commands"].as_array().expect("commands");
    assert_eq!(commands.len(), 3);
    for command in commands {
        let line = command["refusal"].as_str();
        assert_eq!(command["works"], line.is_none());
        let verdict = format!(
            "microslice {}: {}\n",
            command["command"].as_str().unwrap(),
            line.unwrap_or("can work here")
        );
        assert!(said.contains(&verdict), "{verdict} isn't in {said}");
    }
}

#[test]
fn coordinated_wants_of_a_host_what_microslice_wants() {
    let [microslice, coordinated] =
        ["microslice", "coordinated"].map(|name| microslice(&["check", "--require", name]));
    assert_eq!(coordinated.status.code(), microslice.status.code());
    assert_eq!(coordinated.stderr, microslice.stderr);
}

#[test]
fn a_required_command_that_cannot_work_ends_with_code_two() {
    for (at, command) in ["run", "microslice", "observe"].into_iter().enumerate() {
        let output = microslice(&["check", "--require", command]);
        match survey()["commands"][at]["refusal"].as_str() {
            None => assert!(output.status.success(), "{command}: {}", text(&output.stderr)),
            Some(line) => {
                let error = text(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{command}: {error}");
                assert!(error.contains(line) && error.lines().count() == 1, "{command}: {error}");
            }
        }
    }
}

//! What a program that was built without the feature `host` has in place of the commands that need one.

macro_rules! absent {
    ($($module:ident: $name:ident = $command:literal),*) => {
        $(pub mod $module {
            use crate::failure::Failure;

            /// Not in this program, which has the simulator alone
            #[derive(clap::Args)]
            pub struct $name {
                #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
                arguments: Vec<std::ffi::OsString>,
            }

            pub fn run(args: $name) -> Result<(), Failure> {
                drop(args.arguments);
                let cause = "needs a host: this program has the simulator alone (`make build` makes all of it)";
                Err(Failure::bad_input(format_args!(concat!($command, " {}"), cause)))
            }
        })*
    };
}

absent!(
    boost_latency: BoostLatency = "boost-latency",
    check: Check = "check",
    demo: Demo = "demo",
    observe: Observe = "observe",
    run: Run = "run",
    testbed: Testbed = "testbed",
    top: Top = "top",
    trial: Trial = "trial"
);

//! The `forebay` binary.

fn main() -> std::process::ExitCode {
    forebay::cli::main()
}

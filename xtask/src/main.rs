//! Turns the compiled WebAssembly into what the Worker imports: `index.js` and `index_bg.wasm`.
//!
//! Usage: `xtask <input.wasm> <output directory>`

use std::{env, fs, path::Path, process::ExitCode};

use wasm_bindgen_cli_support::Bindgen;

/// Lets the Worker's entry module see which instance is in force and hear at once when one dies.
const EXPORTS: &str = "
let abortListener;
export function onAbort(listener) { abortListener = listener; }
export { __wbg_instance_id as generation };
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        eprintln!("usage: xtask <input.wasm> <output directory>");
        return ExitCode::FAILURE;
    };
    match generate(Path::new(input), Path::new(output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn generate(input: &Path, output: &Path) -> Result<(), String> {
    let mut bindgen = Bindgen::new();
    bindgen
        .input_path(input)
        .out_name("index")
        .typescript(false)
        .reset_state_function(true)
        .force_enable_abort_handler(true);
    bindgen
        .module(true)
        .and_then(|bindgen| bindgen.generate(output))
        .map_err(|e| format!("wasm-bindgen: {e:#}"))?;

    let path = output.join("index.js");
    let glue = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    // workerd imports a module of compiled WebAssembly with a plain import.
    let glue = replace_once(&glue, "import source ", "import ")?;
    let glue = replace_once(
        &glue,
        "    __wbg_called_abort = true;\n",
        "    __wbg_called_abort = true;\n    abortListener?.();\n",
    )?;
    fs::write(&path, glue + EXPORTS).map_err(|e| format!("{}: {e}", path.display()))
}

/// The glue is generated text: where it no longer looks as expected, stop instead of shipping it.
fn replace_once(text: &str, from: &str, to: &str) -> Result<String, String> {
    match text.matches(from).count() {
        1 => Ok(text.replacen(from, to, 1)),
        found => Err(format!(
            "expected {from:?} once in the generated glue, found it {found} times"
        )),
    }
}

//! `xtask <input.wasm> <output directory>`: writes the JavaScript glue for the Worker.
use std::{env, fs, path::Path, process::ExitCode};
use wasm_bindgen_cli_support::Bindgen;
fn main() -> ExitCode {
    let a: Vec<String> = env::args().skip(1).collect();
    let out = Path::new(&a[1]);
    Bindgen::new().input_path(&a[0]).out_name("index").typescript(false).module(true).unwrap()
      .reset_state_function(true).force_enable_abort_handler(true).generate(out).unwrap();
    let js = fs::read_to_string(out.join("index.js")).unwrap().replace("import source ", "import ");
    fs::write(out.join("index.js"), js).unwrap();
    ExitCode::SUCCESS
}

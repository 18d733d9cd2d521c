#!/bin/sh
# Fetches the official JSON-Schema-Test-Suite, which `cargo test` needs, into target/.
# It travels in the source package of the Python library jsonschema.
set -eu
cd "$(dirname "$0")/.."
version=4.26.0
digest=0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326
into=target/json-schema-test-suite
[ -f "$into/tests/draft2020-12/type.json" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
  --dest "$work" "jsonschema==$version"
echo "$digest  $work/jsonschema-$version.tar.gz" | sha256sum --check --quiet
tar -xzf "$work/jsonschema-$version.tar.gz" -C "$work"
rm -rf "$into"
mkdir -p "$into"
mv "$work/jsonschema-$version/json/tests" "$work/jsonschema-$version/json/remotes" \
  "$work/jsonschema-$version/json/LICENSE" "$into/"

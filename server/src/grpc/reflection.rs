//! The protocol of the services as gRPC reflection shows it, so that tools such as grpcurl can call them without
//! files.
//!
//! The descriptors of the rate limit service are compiled from the `.proto` files that `envoy-types` contains
//! (Apache-2.0). They are a file in the repository, because a build must not need a compiler of protobuf.

use tonic_reflection::server::Builder;

/// An encoded `FileDescriptorSet`, without comments and without the options of extensions.
const DESCRIPTORS: &[u8] = include_bytes!("../../assets/ratelimit.binpb");

/// A reflection service that describes the rate limit service and the health checks.
pub(super) fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs};

    use prost::Message;
    use serde_json::Value;

    use super::*;

    const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

    fn output_of_cargo(args: &[&str]) -> Vec<u8> {
        let output = Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// The folders of `.proto` files in `envoy-types`.
    fn includes() -> Vec<PathBuf> {
        let version = String::from_utf8(output_of_cargo(&["-vV"])).unwrap();
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        // Without the platform, Cargo would download the dependencies of all others.
        let args = ["metadata", "--locked", "--format-version=1", "--filter-platform", host];
        let metadata: Value = serde_json::from_slice(&output_of_cargo(&args)).unwrap();
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let package = packages.find(|package| package["name"] == "envoy-types").unwrap();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folders = fs::read_dir(manifest.with_file_name("proto")).unwrap();
        let mut folders: Vec<_> = folders.map(|folder| folder.unwrap().path()).collect();
        folders.sort();
        folders
    }

    /// Otherwise tools would not know new fields. `UPDATE_DESCRIPTORS=1` writes the file.
    #[test]
    fn the_descriptors_are_those_of_the_protocol_that_is_served() {
        let mut compiler = protox::Compiler::new(includes()).unwrap();
        compiler.include_imports(true).open_file(SERVICE).unwrap();
        let compiled = compiler.file_descriptor_set().encode_to_vec();
        if env::var_os("UPDATE_DESCRIPTORS").is_some() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/ratelimit.binpb");
            fs::write(file, &compiled).unwrap();
        }
        let advice = "run this test with UPDATE_DESCRIPTORS=1, and commit the file";
        assert!(compiled == DESCRIPTORS, "the descriptors are outdated: {advice}");
    }
}

//! Files with policies that change while they are watched, in the ways in which they do.

use std::fs;
use std::path::Path;

use fleetlimit::{Limiter, Limiters, MemoryStore, Policy, PolicySet, Quota};

use crate::common::{BOUND, TempDir, wait_until};

/// The policy of a file with the permits per hour.
fn parse(text: &str) -> Result<PolicySet, std::num::ParseIntError> {
    let quota = Quota::per_hour(text.trim().parse()?);
    Ok(PolicySet::new().policy(Policy::new("search").quota("hour", quota)))
}

async fn wait_for(limiter: &Limiter, permits: u64) {
    let limit = async || limiter.peek("key").await.unwrap().limit();
    wait_until("the limit applies", BOUND, async || limit().await == permits).await;
}

fn limiters(file: &Path) -> (Limiters, Limiter) {
    let set = parse(&fs::read_to_string(file).unwrap()).unwrap();
    let limiters = Limiters::new(MemoryStore::new(), set).unwrap();
    let limiter = limiters.get("search").unwrap();
    (limiters, limiter)
}

#[cfg(unix)]
#[tokio::test]
async fn a_config_map_that_kubernetes_swaps_applies() {
    use std::os::unix::fs::symlink;

    let directory = TempDir::new();
    let volume = directory.path();
    let write = |version: &str, permits: &str| {
        fs::create_dir(volume.join(version)).unwrap();
        fs::write(volume.join(version).join("limits"), permits).unwrap();
    };
    write("..2024_1", "1");
    symlink("..2024_1", volume.join("..data")).unwrap();
    symlink("..data/limits", volume.join("limits")).unwrap();
    let file = volume.join("limits");
    let (limiters, limiter) = limiters(&file);
    let _watch = limiters.watch(&file, parse).unwrap();
    for (before, version, permits) in [("..2024_1", "..2024_2", 2), ("..2024_2", "..2024_3", 3)] {
        write(version, &permits.to_string());
        symlink(version, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        fs::remove_dir_all(volume.join(before)).unwrap();
        wait_for(&limiter, permits).await;
    }
}

/// The directory of the link has no event.
#[cfg(unix)]
#[tokio::test]
async fn a_change_behind_a_link_to_another_directory_applies() {
    use std::os::unix::fs::symlink;

    let (directory, elsewhere) = (TempDir::new(), TempDir::new());
    let (file, target) = (directory.path().join("limits"), elsewhere.path().join("limits"));
    fs::write(&target, "1").unwrap();
    symlink(&target, &file).unwrap();
    let (limiters, limiter) = limiters(&file);
    let _watch = limiters.watch(&file, parse).unwrap();
    fs::write(&target, "2").unwrap();
    wait_for(&limiter, 2).await;
    fs::write(&target, "3").unwrap();
    wait_for(&limiter, 3).await;
}

#!/usr/bin/env bash
# Changes the scripts in lua/ in many ways, one at a time, and checks that the tests notice. A mutation is a
# file, a text in it, and what replaces the first occurrence of the text. `mutants.sh 7 9` runs only numbers 7 and 9.
set -euo pipefail
cd "$(dirname "$0")/.."

mutations=(
    "frame|if found == '-' or not (VALID) then|if found == '-' then"
    "frame|if value and not changed and found ~= '-' then|if false then"
    "frame|if ttl == -1 or|if ttl == -3 or"
    "frame|till - now > ttl * 1e3 + 2e6|till - now > ttl * 1e6 + 2e6"
    "frame|if changed or found == '-' or back then|if true then"
    "frame|if changed or found == '-' or back then|if changed then"
    "frame|if changed or found == '-' or back then|if changed or found == '-' then"
    "frame|        now = time[1] * 1e6 + time[2]|"
    "frame|if not (failed or binary) then|if not binary then"
    "frame|if not string.find(text, '\\0', 1, true) then|if true then"
    "decide|level@ + cost PRICE <= capacity@|level@ + cost PRICE < capacity@"
    "decide|level@ + cost PRICE <= capacity@|level@ <= capacity@"
    "decide|math.floor(((waits|math.ceil(((waits"
    "decide|kind == '-' and is_last|kind == '-'"
    "decide|kind == '-' and is_last|false"
    "decide|cost@ ~= END then is_last|cost@ == END then is_last"
    "decide|level@ = math.max(0, level@ + count|level@ = math.max(-99, level@ + count"
    "decide|elseif cost@ < 0 then|elseif cost@ < -1 then"
    "decide|if value or changed or ANY_COST then|if ANY_COST then"
    "decide|if count > 0 and (ANY_COST) then|if (ANY_COST) then"
    "decide|elseif later and level@ + 1 PRICE >|elseif later and level@ + 2 PRICE >"
    "decide|> capacity@ then|> (waits and WAITING or capacity@) then"
    "decide|local room = math.max(0, math.floor(|local room = math.max(0, math.ceil("
    "packed|local expiry = last - last % granule + granule|local expiry = last - last % granule"
    "packed|'PXAT', format('%d', expiry / 1000), 'GET'|'GET'"
    "packed|format('%d', expiry / 1000)|format('%d', expiry)"
    "packed|and till - till % granule + granule == expiry|and true"
    "other|elseif written > now then|elseif false then"
    "packed|if #value == #header + cell_bytes and|if"
    "frame|found ~= '-' and level or|level or"
    "short|level = (own or not value) and|level ="
    "decide|level = nil|"
    "short|(full - full % 1000) / 1000 + 1000|(full - full % 1000) / 1000"
    "short|'PXAT', expiry, 'GET'|'GET'"
    "short|full1, full1 - 1e3|full1, full1 - 999"
    "short|format('%d000', full - own)|format('%d000', full - own + 1000)"
    "short|and own - own % 1000000 == full - full % 1000000|and true"
    "token_bucket|level@ = (full@ - now) * scale@ + ticks@|level@ = (full@ - now) * scale@"
    "token_bucket|ticks@ = level@ % scale@|ticks@ = 0"
    "token_bucket|part = math.ceil(over / theirs)|part = math.floor(over / theirs)"
    "token_bucket|if over > 0 then part = part + 1 end|"
    "token_bucket_micros|full@ = now + level@|full@ = now + level@ + 1"
    "token_bucket_borrowing|level@ <= capacity@ - permit@ and|"
    "token_bucket_borrowing|before_last + 1|before_last"
    "doubt|at_own_rate(level@) - at_own_rate(most), most|0, most"
    "doubt|local empty = now + (level@ - capacity@ - rest) / (1 SCALE)|local empty = now"
    "interval_refill|(math.ceil(level@ / permits@) - 1) * interval@|math.ceil(level@ / permits@) * interval@"
    "interval_refill|math.floor((now - refill@) / interval) + 1|math.floor((now - refill@) / interval)"
    "interval_refill|math.max(math.ceil(interval@ - elapsed), 1)|interval@"
    "interval_refill|(permits / permits@ * (interval@ / interval))|(interval@ / interval)"
    "fixed_window|if ends@ <= now or level@ == 0 then|if level@ == 0 then"
    "interval_refill|refill@ = refill@ - back|"
    "fixed_window|begin@, ends@ = math.max(0, begin@ - back), math.max(0, ends@ - back)|"
    "approximate_sliding_window|start@ = math.max(0, start@ - back)|"
    "fixed_window|ends@ = math.max(ends@, begin@ + span@)|ends@ = ends@"
    "calendar_window|local from, to = second@, third@|local from, to = first@, second@"
    "calendar_window|  from, to = first@, second@|  from, to = second@, third@"
    "calendar_window|elseif now < first@ then|elseif now < 0 then"
    "calendar_window|if now >= fourth@ then|if now < 0 then"
    "calendar_window|  from, to = third@, fourth@|  from, to = second@, third@"
    "approximate_sliding_window|level@ = current@ + math.floor(previous@ * left / units)|level@ = current@ + math.ceil(previous@ * left / units)"
    "approximate_sliding_window|if windows == 1 then|if windows >= 1 then"
    "approximate_sliding_window|start@ + 2 * span@|start@ + span@"
    "sliding_window|if turns > segments then|if turns > segments + 1 then"
    "sliding_window|last@ = (newest@ + segments@ + 1) * width@|last@ = (newest@ + segments@) * width@"
    "sliding_window|used@ = used@ - read('>I4', ring@, 4 * n - 3)|used@ = used@ - 1"
    "concurrent|if ends > now and instance|if ends >= now and instance"
    "concurrent|if first > 1 then|if false then"
    "concurrent|instance ~= instance@ then|instance > 0 then"
    "concurrent|held > 0 and now + lifetime@ or now|now"
    "concurrent|ring@, math.max(last@, ends)|ring@, ends"
    "concurrent|math.max(0, ends - back)|ends"
    "concurrent|own, size@ = nil, #ring@|size@ = #ring@"
    "concurrent|#cells % 28 == 8|#cells % 28 == 9"
    "concurrent|if count >= call@ and|if true and"
    "concurrent|others@ + cost@, count end|others@ + cost@, call@ end"
    "concurrent|level@, call@ = others@ + cost@|level@, call@ = level@"
    "concurrent|ends > last@ then last@ = ends|ends < last@ then last@ = ends"
    "concurrent|#ring@ >= 28 * 1024 then count = 0|false then count = 0"
    "decide|elseif kind == '#' then|elseif false then"
    "other|not mine[entry.id] and|"
    "token_bucket|if has_rate or not owner then owner|if not owner then owner"
    "token_bucket|if has_rate or not owner then owner|if has_rate then owner"
    "other|if has_identities or more.count > 0 then more.id = nil else more = nil end|more = nil"
    "other|more.till = more.count + 1, math.max(more.till, last)|more.till = more.count + 1, last"
)

# Those that notice most first.
tests=("mixes:: time_travel:: concurrent:: holds::" state:: "calendars:: charges:: exact:: queue:: server_errors:: waiting::")
copy="$PWD/target/mutants"
rm -rf "$copy"
mkdir -p "$copy"
# As new files (-m), or cargo would take the build of an earlier run for theirs.
git ls-files -z | xargs -0 tar -cf - | tar -xmf - -C "$copy"
export CARGO_TARGET_DIR="$PWD/target/mutants-build" CARGO_PROFILE_DEV_DEBUG=0 RUST_BACKTRACE=0
export PROPTEST_MAX_SHRINK_ITERS=0
cd "$copy"

passes() {
    if ! cargo test --locked --all-features --test it --no-run >"$copy/log" 2>&1; then
        cat "$copy/log" >&2
        echo "the tests do not build, so they show nothing" >&2
        exit 1
    fi
    for filter in "${tests[@]}"; do
        # A mutation may make a test wait for ever.
        # shellcheck disable=SC2086
        timeout 120 cargo test --locked --all-features --test it -- $filter >"$copy/log" 2>&1 || return 1
    done
}

if ! passes; then
    cat "$copy/log" >&2
    echo "the tests fail without a mutation" >&2
    exit 1
fi
missed=()
for number in "${!mutations[@]}"; do
    if [ $# -gt 0 ] && [[ " $* " != *" $number "* ]]; then
        continue
    fi
    IFS='|' read -r name from to <<<"${mutations[$number]}"
    file="lua/$name.lua"
    text="$(<"$file")"
    mutant="${text/"$from"/"$to"}"
    if [ "$mutant" = "$text" ]; then
        echo "$number: $file has no \`$from\`" >&2
        exit 1
    fi
    printf '%s\n' "$mutant" >"$file"
    if passes; then
        missed+=("$number")
        echo "$number MISSED: $name: $from -> $to"
    else
        seen="$(grep -m 1 -o 'test .* FAILED' "$copy/log" || echo 'does not end')"
        echo "$number caught: $name: $seen"
    fi
    printf '%s\n' "$text" >"$file"
done
if [ "${#missed[@]}" -gt 0 ]; then
    echo "missed: ${missed[*]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# Install what the tests use besides Python packages, where this user may.  Never fails: tests without it are skipped, and say so.
# LEVELHEAD_SYSTEM_PACKAGES=no installs nothing.
set -u
cd "$(dirname "$0")/.."

bundled() {
    .venv/bin/python -c 'from playwright.sync_api import sync_playwright
with sync_playwright() as p: print(p.chromium.executable_path)' 2>/dev/null
}
has_chromium() {
    [ -n "${LEVELHEAD_CHROMIUM:-}" ] && return
    for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable "$(bundled)"; do
        command -v "$name" >/dev/null 2>&1 && return
    done
    return 1
}
has_libatomic() { compgen -G '/usr/lib*/libatomic.so.1' >/dev/null || compgen -G '/usr/lib/*/libatomic.so.1' >/dev/null; }
missing() {
    if [ "$(uname)" = Linux ]; then
        has_libatomic || echo libatomic1 # Playwright's driver needs it
        command -v bwrap >/dev/null 2>&1 || echo bubblewrap
    fi
    has_chromium || echo chromium
}

packages="$(missing)"
if [ -n "$packages" ] && [ "${LEVELHEAD_SYSTEM_PACKAGES:-}" != no ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "for the tests: apt-get install $(echo $packages)"
        timeout 300 apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y -qq --no-install-recommends $packages >/dev/null
    elif ! has_chromium; then
        echo "for the tests: playwright install chromium"
        timeout 600 .venv/bin/playwright install chromium >/dev/null 2>&1
    fi
    packages="$(missing)"
fi
for package in $packages; do
    echo "not installed: $package; tests that need it are skipped"
done
exit 0

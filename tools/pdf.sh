#!/usr/bin/env bash
# The site as one PDF, by Debian's chromium and poppler-utils: tools/pdf.sh SITE OUT
set -euo pipefail
site=$1 out=$2
for tool in chromium pdfunite; do
    command -v $tool >/dev/null || { echo "$tool is missing: install chromium and poppler-utils" >&2; exit 1; }
done
[[ -f $site/index.html ]] || { echo "$site: no pages, run \`make report\`" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The index, then what it links to, in its order.
pages=(index.html $(grep -o 'href="[a-z0-9_]*\.html"' "$site/index.html" | sed 's/href="\(.*\)"/\1/' | awk '!seen[$0]++ && $0 != "index.html"'))
for page in "${pages[@]}"; do
    chromium --headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
        --user-data-dir="$folder/profile" --no-pdf-header-footer \
        --print-to-pdf="$folder/$page.pdf" "file://$(realpath "$site/$page")" 2>"$folder/said" ||
        { cat "$folder/said" >&2; exit 1; }
done
pdfunite $(printf "$folder/%s.pdf " "${pages[@]}") "$folder/all"
mv "$folder/all" "$out.part" && mv "$out.part" "$out"
echo "$out: $(pdfinfo "$out" | awk '/^Pages/ { print $2 }') pages"

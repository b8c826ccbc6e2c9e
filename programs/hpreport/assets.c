/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/assets.c - the page's own source is taken in by the assembler, as it lies in page/.
 *
 * PAGE is that folder, from cmake, which compiles this file again when one in there changes.
 */
#include "assets.h"
#include "die.h"

#include <string.h>

#define ASSET(label, file)                                                                         \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global asset_" #label "\n"                                                           \
            ".global asset_" #label "_end\n"                                                       \
            "asset_" #label ":\n"                                                                  \
            ".incbin \"" PAGE "/" file "\"\n"                                                      \
            "asset_" #label "_end:\n"                                                              \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char asset_##label[], asset_##label##_end[];

ASSET(page_html, "page.html")
ASSET(page_css, "page.css")
ASSET(data_js, "data.js")
ASSET(timeline_js, "timeline.js")
ASSET(panels_js, "panels.js")

asset asset_named(const char *name) {
    static const struct {
        const char *name;
        const char *begin, *end;
    } assets[] = {{"page.html", asset_page_html, asset_page_html_end},
                  {"page.css", asset_page_css, asset_page_css_end},
                  {"data.js", asset_data_js, asset_data_js_end},
                  {"timeline.js", asset_timeline_js, asset_timeline_js_end},
                  {"panels.js", asset_panels_js, asset_panels_js_end}};
    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strcmp(assets[i].name, name) == 0)
            return (asset){assets[i].begin, assets[i].end};
    die("expected a part of the page, given \"%s\"", name);
}

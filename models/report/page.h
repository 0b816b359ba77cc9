#ifndef DTRUN_MODELS_REPORT_PAGE_H_
#define DTRUN_MODELS_REPORT_PAGE_H_

#include <string>

#include "models/report/run_report.h"

namespace dtrun::models {

/// The report as one HTML page that needs nothing else: no network, no font, no script. Pictures
/// are SVG; every number in them also stands in a table. Follows the reader's choice of light or
/// dark, fits the width of a phone, and can be printed.
std::string ToHtml(const RunReport& report);

/// Replaces the file `path` by the page, whole or not at all. Throws Error kSystem with the path
/// and the reason.
void WriteRunReport(const std::string& path, const RunReport& report);

}  // namespace dtrun::models

#endif

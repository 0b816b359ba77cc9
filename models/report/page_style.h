#ifndef DTRUN_MODELS_REPORT_PAGE_STYLE_H_
#define DTRUN_MODELS_REPORT_PAGE_STYLE_H_

#include <string>

namespace dtrun::models {

/// The style sheet of a report's page, and of the drawings in it. Colours are those of M. Okabe and
/// K. Ito, "Color Universal Design" (2008), which people with any colour vision can tell apart; the
/// dark page has its lighter ones. What colours say, form or order says as well.
std::string PageStyle();

}  // namespace dtrun::models

#endif

#ifndef DTRUN_MODELS_REPORT_MARKUP_H_
#define DTRUN_MODELS_REPORT_MARKUP_H_

#include <string>
#include <utility>
#include <vector>

namespace dtrun::models {

/// Text as it stands in HTML, SVG and their quoted attributes. Bytes that are not UTF-8 and control
/// characters, which no page may contain, become U+FFFD.
std::string Escape(const std::string& text);

using Attributes = std::vector<std::pair<std::string, std::string>>;

/// <name attribute="value">content</name>. Values are escaped here; content is markup already.
std::string Element(
    const std::string& name, const Attributes& attributes, const std::string& content = "");

/// A length or place in a drawing, in its own units.
std::string Length(double value);

}  // namespace dtrun::models

#endif

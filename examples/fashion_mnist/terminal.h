#pragma once

#include <langinfo.h>

#include <clocale>
#include <string_view>

namespace fashion_mnist {

/// Whether the user's locale shows UTF-8.
inline bool locale_is_utf8() {
  std::setlocale(LC_CTYPE, "");
  return std::string_view(nl_langinfo(CODESET)) == "UTF-8";
}

}  // namespace fashion_mnist

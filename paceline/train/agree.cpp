#include "paceline/train/agree.h"

#include <fmt/format.h>

#include <exception>

namespace paceline {

std::vector<std::string> agree(const Comm& comm, const std::function<std::string()>& action) {
  constexpr char kOk = '+';
  constexpr std::size_t kDigits = 3;  // of a Fault
  std::string own;
  try {
    own = kOk + action();
  } catch (const Error& error) {
    own = std::to_string(static_cast<int>(error.fault())) + error.message();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    own = std::to_string(static_cast<int>(Fault::SystemRefused)) + what.substr(0, what.find('\n'));
  }
  std::vector<std::string> all = comm.gather(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == kOk) {
      all[rank].erase(0, 1);
      continue;
    }
    throw Error(static_cast<Fault>(std::stoi(all[rank].substr(0, kDigits))),
                fmt::format("on rank {}: {}", rank, all[rank].substr(kDigits)), comm.rank(), static_cast<int>(rank),
                static_cast<int>(rank) == comm.rank() ? Cause::First : Cause::Consequence);
  }
  return all;
}

}  // namespace paceline

#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace paceline::launch {

/// How a piece of a worker's output ends.
enum class PieceEnd {
  Newline,     ///< A whole line; the newline is not part of the piece.
  Return,      ///< With '\r': a live progress line.
  Cut,         ///< The line is too long to be held; its next piece follows.
  Unfinished,  ///< The output ended without a newline.
};

/// Splits one stream into pieces, in bounded memory. Bytes are taken as they are.
class LineSplitter {
 public:
  static constexpr std::size_t kLongestPiece = std::size_t{64} << 10;

  /// Calls `emit(std::string_view piece, PieceEnd)` for each piece that is complete.
  template <class Emit>
  void feed(std::string_view bytes, Emit&& emit) {
    while (!bytes.empty()) {
      if (after_return_) {
        // "\r\n" is the end of an ordinary line. Whatever else follows writes over the live line.
        if (bytes.front() == '\n') {
          emit(std::string_view(piece_), PieceEnd::Newline);
          bytes.remove_prefix(1);
        }
        piece_.clear();
        after_return_ = false;
        continue;
      }
      const std::size_t room = kLongestPiece - piece_.size();
      const std::size_t length = std::min(bytes.substr(0, room).find_first_of("\n\r"), std::min(room, bytes.size()));
      piece_.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
      if (bytes.empty()) break;
      if (length == room) {
        emit(std::string_view(piece_), PieceEnd::Cut);
        piece_.clear();
        cut_ = true;
        continue;
      }
      const bool newline = bytes.front() == '\n' || cut_;
      bytes.remove_prefix(1);
      emit(std::string_view(piece_), newline ? PieceEnd::Newline : PieceEnd::Return);
      if (newline) piece_.clear();
      after_return_ = !newline;
      cut_ = false;
    }
  }

  template <class Emit>
  void finish(Emit&& emit) {
    if (!after_return_ && (!piece_.empty() || cut_)) emit(std::string_view(piece_), PieceEnd::Unfinished);
    piece_.clear();
    after_return_ = cut_ = false;
  }

 private:
  std::string piece_;
  bool after_return_ = false;  // piece_ ended in '\r', and what follows tells what it was
  bool cut_ = false;           // the beginning of this line is out already
};

}  // namespace paceline::launch

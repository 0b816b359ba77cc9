#include "base/hmac_sha256.h"

#include <catch2/catch.hpp>
#include <string>

namespace {

using namespace dtrun::base;

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) / 16];
    hex += kDigits[static_cast<unsigned char>(byte) % 16];
  }
  return hex;
}

// The examples of FIPS 180-2, and lengths around the end of a block.
TEST_CASE("SHA-256 gives the digests of the standard") {
  CHECK(Hex(Sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Hex(Sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(
      Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(
      Hex(Sha256(std::string(1'000'000, 'a'))) ==
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(
      Hex(Sha256(std::string(64, 'a'))) ==
      "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

// RFC 4231, cases 2 and 6.
TEST_CASE("HMAC gives the digests of the standard also with a key longer than a block") {
  CHECK(
      Hex(HmacSha256("Jefe", "what do ya want for nothing?")) ==
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(
      Hex(HmacSha256(
          std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(EqualInConstantTime("ab", "ab"));
  CHECK_FALSE(EqualInConstantTime("ab", "aB"));
  CHECK_FALSE(EqualInConstantTime("ab", "abc"));
}

}  // namespace

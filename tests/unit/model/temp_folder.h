// A folder of its own for a test.
#ifndef ATTNSERVE_TESTS_UNIT_MODEL_TEMP_FOLDER_H_
#define ATTNSERVE_TESTS_UNIT_MODEL_TEMP_FOLDER_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace attnserve {

// Made on construction, removed with all it holds on destruction.
class TempFolder {
 public:
  TempFolder() : path_(testing::TempDir() + "attnserve-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(File(name), std::ios::binary) << bytes;
    return File(name);
  }

 private:
  std::string path_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_MODEL_TEMP_FOLDER_H_

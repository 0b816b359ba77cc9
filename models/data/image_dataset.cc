#include "models/data/image_dataset.h"

#include <dtrun/error.h>
#include <dtrun/objects.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "models/data/dataset.h"
#include "models/data/host_memory.h"
#include "models/data/pipeline_node.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

// The sizes of a data set as plain numbers, so that ranks can exchange them.
struct Facts {
  uint64_t train_count, test_count;
  int32_t height, width, classes;
  uint32_t digest;  // CRC-32 of all bytes
  bool operator==(const Facts&) const = default;
};

using Parts = std::vector<std::span<const uint8_t>>;

Parts PartsOf(const Dataset& data) {
  return {data.train.pixels, data.train.labels, data.test.pixels, data.test.labels};
}

Facts FactsOf(const Dataset& data) {
  auto digest = crc32_z(0, nullptr, 0);
  for (const auto& part : PartsOf(data)) digest = crc32_z(digest, part.data(), part.size());
  return {data.train.count, data.test.count, data.train.height,
          data.train.width, data.classes,    static_cast<uint32_t>(digest)};
}

ImageDataset Assemble(
    const std::string& directory, const Facts& facts, Pipeline train, Pipeline test) {
  const ExampleShape shape{facts.height, facts.width, 1};
  return {
      std::move(train),
      std::move(test),
      {directory, facts.train_count, facts.test_count, shape, facts.classes}};
}

// The result of reading the files, sent from the first rank of a host to all ranks.
struct Finding {
  std::string error;
  int code = 0;
  std::optional<Facts> facts;
};

Finding Read(const std::string& directory, Dataset* data) {
  try {
    *data = LoadDataset(directory);
    return {"", 0, FactsOf(*data)};
  } catch (const Error& error) {
    return {error.what(), static_cast<int>(error.code()), std::nullopt};
  } catch (const std::bad_alloc&) {
    return {
        Text(directory, ": not enough memory to read it"),
        static_cast<int>(ErrorCode::kUnavailable), std::nullopt};
  } catch (const std::exception& error) {
    return {
        Text(directory, ": ", error.what()), static_cast<int>(ErrorCode::kSystem), std::nullopt};
  }
}

// The index of the rank's host. Ranks are numbered host by host.
int HostOf(int rank, const std::vector<Host>& hosts) {
  int host = 0;
  for (; rank >= hosts[static_cast<size_t>(host)].slots; ++host)
    rank -= hosts[static_cast<size_t>(host)].slots;
  return host;
}

// All ranks throw the same error.
void CheckDirectories(
    Communicator& world, const std::vector<Host>& hosts, const std::string& directory) {
  const std::vector<std::vector<std::string>> of_ranks = AllGatherStrings(world, {directory});
  size_t first = 0;  // the first rank of the host
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const int host = HostOf(static_cast<int>(rank), hosts);
    if (host != HostOf(static_cast<int>(first), hosts)) first = rank;
    if (of_ranks[rank] == of_ranks[first]) continue;
    throw Error(
        ErrorCode::kMismatch, Text(
                                  "rank ", rank, " (host ", hosts[static_cast<size_t>(host)].name,
                                  "): the data set in ", of_ranks[rank][0], ", expected ",
                                  of_ranks[first][0], " as rank ", first, " of the same host has"));
  }
}

// Returns one finding per host, in the order of the hosts.
std::vector<Finding> Exchange(Communicator& world, const Finding& mine) {
  const std::vector<std::vector<std::string>> texts =
      AllGatherStrings(world, {Text(mine.code), mine.error});
  const std::vector<std::vector<Facts>> facts =
      AllGatherObjects(world, mine.facts ? std::vector<Facts>{*mine.facts} : std::vector<Facts>());
  std::vector<Finding> of_hosts;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const std::string& error = texts[rank][1];
    if (!error.empty()) of_hosts.push_back({error, std::stoi(texts[rank][0]), std::nullopt});
    if (!facts[rank].empty()) of_hosts.push_back({"", 0, facts[rank][0]});
  }
  return of_hosts;
}

std::string Describe(const Facts& f) {
  return Text(
      f.train_count, " training and ", f.test_count, " test images of ", f.height, "x", f.width,
      ", checksum ", f.digest);
}

// All ranks throw the same error.
void CheckFindings(
    const std::vector<Finding>& of_hosts, const std::vector<Host>& hosts,
    const std::string& directory) {
  const auto failed = std::find_if(
      of_hosts.begin(), of_hosts.end(), [](const Finding& f) { return !f.error.empty(); });
  if (failed != of_hosts.end()) {
    const bool everywhere = std::all_of(of_hosts.begin(), of_hosts.end(), [&](const Finding& f) {
      return f.error == failed->error;
    });
    const std::string& host = hosts[static_cast<size_t>(failed - of_hosts.begin())].name;
    const auto code = static_cast<ErrorCode>(failed->code);
    const std::string text = everywhere ? failed->error : Text("host ", host, ": ", failed->error);
    if (code == ErrorCode::kUnavailable) throw Error(code, text);
    throw UnusableDataError(code, text);
  }
  for (size_t i = 1; i < of_hosts.size(); ++i) {
    if (of_hosts[i].facts == of_hosts[0].facts) continue;
    throw Error(
        ErrorCode::kMismatch, Text(
                                  directory, ": the hosts have different data: host ",
                                  hosts[0].name, " ", Describe(*of_hosts[0].facts), ", host ",
                                  hosts[i].name, " ", Describe(*of_hosts[i].facts)));
  }
}

}  // namespace

ImageDataset LoadImageDataset(const std::string& directory) {
  Dataset data = LoadDataset(directory);
  const Facts facts = FactsOf(data);
  return Assemble(
      directory, facts, Pipeline::FromImages(std::make_shared<const Images>(std::move(data.train))),
      Pipeline::FromImages(std::make_shared<const Images>(std::move(data.test))));
}

struct KeptImages::Content {
  DatasetInfo info;
  uint32_t digest;  // CRC-32 of all bytes
  std::shared_ptr<const HostMemory> memory;
};

// Loads a data set on the ranks of all hosts.
class ImageLoader {
 public:
  ImageLoader(const std::string& directory, Communicator& world, KeptImages* kept)
      : directory_(directory), world_(world), kept_(kept) {}

  // The first rank of each host has the data: a rank that has kept it, or else one that reads it.
  ImageDataset Load(const std::vector<Host>& hosts) {
    CheckDirectories(world_, hosts, directory_);
    Communicator host = *world_.Split(HostOf(world_.rank(), hosts), has_kept() ? 0 : 1);
    Dataset data;
    const Finding mine = host.rank() == 0 ? Find(&data) : Finding{};
    const std::vector<Finding> of_hosts = Exchange(world_, mine);
    CheckFindings(of_hosts, hosts, directory_);
    const Facts facts = *of_hosts[0].facts;
    const auto memory = HostMemory::Share(host, has_kept() ? KeptParts() : PartsOf(data));
    ImageDataset images = Map(facts, memory);
    if (kept_ != nullptr)
      kept_->content_ = std::make_shared<const KeptImages::Content>(
          KeptImages::Content{images.info, facts.digest, memory});
    return images;
  }

 private:
  bool has_kept() const {
    return kept_ != nullptr && kept_->content_ != nullptr &&
           kept_->content_->info.directory == directory_;
  }
  Parts KeptParts() const {
    const HostMemory& memory = *kept_->content_->memory;
    return {{memory.data(), memory.bytes()}};
  }
  Finding Find(Dataset* data) const {
    if (!has_kept()) return Read(directory_, data);
    const DatasetInfo& info = kept_->content_->info;
    const Facts facts = {info.train_examples, info.test_examples, info.shape.height,
                         info.shape.width,    info.classes,       kept_->content_->digest};
    return {"", 0, facts};
  }

  ImageDataset Map(const Facts& facts, const std::shared_ptr<const HostMemory>& memory) const {
    const ExampleShape shape{facts.height, facts.width, 1};
    const uint8_t* bytes = memory->data();
    const auto next = [&](uint64_t count) {
      const uint8_t* labels = bytes + count * shape.count();
      const Pipeline pipeline = Pipeline::FromMapped(shape, count, bytes, labels, memory);
      bytes = labels + count;
      return pipeline;
    };
    const Pipeline train = next(facts.train_count), test = next(facts.test_count);
    return Assemble(directory_, facts, train, test);
  }

  const std::string& directory_;
  Communicator& world_;
  KeptImages* kept_;
};

ImageDataset LoadImageDataset(const std::string& directory, Context& job, KeptImages* kept) {
  return LoadImageDataset(directory, job.world(), job.hosts(), kept);
}

ImageDataset LoadImageDataset(
    const std::string& directory, Communicator& world, const std::vector<Host>& hosts,
    KeptImages* kept) {
  return ImageLoader(directory, world, kept).Load(hosts);
}

}  // namespace dtrun::models

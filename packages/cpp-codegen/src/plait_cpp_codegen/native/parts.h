// Launches that run at the same time, in one parallel region: their tasks, taken `grain` at a time,
// are numbered through; a thread takes a range of these.
struct Part {
  void (*range)(int64_t begin, int64_t end, void* context);
  Arguments arguments;
  int64_t end;  // the number behind this part's last
  int64_t grain, tasks;
};
struct Parts { const Part* parts; int64_t count; };

static void run_parts_range(int64_t begin, int64_t end, void* context) {
  const Parts& all = *(const Parts*)context;
  int64_t low = 0, high = all.count - 1;
  while (low < high) {  // the first part that ends behind `begin`
    int64_t middle = (low + high) / 2;
    if (all.parts[middle].end > begin) high = middle; else low = middle + 1;
  }
  for (int64_t at = begin; at < end; ++low) {
    const Part& part = all.parts[low];
    const int64_t start = low ? all.parts[low - 1].end : 0;
    const int64_t stop = part.end < end ? part.end : end;
    const int64_t last = (stop - start) * part.grain;
    if (at < stop) part.range((at - start) * part.grain, last < part.tasks ? last : part.tasks, (void*)&part.arguments);
    if (at < stop) at = stop;
  }
}
static void run_parts(const Part* parts, int64_t count, int64_t grain, const Api& api) {
  const Parts all = {parts, count};
  api.parallel_for(0, parts[count - 1].end, grain, run_parts_range, (void*)&all);
}

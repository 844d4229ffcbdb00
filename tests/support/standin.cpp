// A PyTorch device for tests, "standin": its memory is host memory, and its kernels are the CPU's, on copies.
//
// Its tensors cannot be mixed with tensors of the CPU, as on a GPU, and it has generators of its own. So a tensor that is
// created on the wrong device, and a draw from the wrong generator, fail here as they would there.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <cstdlib>
#include <cstring>
#include <unordered_set>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
const c10::Device device(kDevice, 0);
std::atomic<int64_t> num_waits{0};

// ------------------------------------------------------------------ memory and device

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = std::malloc(size + 1);
    std::memset(data, 0x7F, size);  // not zeros, which would hide reads of memory that was never written
    return {data, data, &std::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }
};
Memory memory;
REGISTER_ALLOCATOR(kDevice, &memory)

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = &memory; }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { num_waits++; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ------------------------------------------------------------------ generators

// The CPU's generator under the name of the device.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(at::Generator cpu = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(c10::Device(kDevice, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu(std::move(cpu)) {}
  static c10::DeviceType device_type() { return kDevice; }
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "no offset"); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(cpu.clone()); }
  at::Generator cpu;
};

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<DeviceGenerator>();
  return generator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<DeviceGenerator>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DataPtr data = memory.allocate(size);
    std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};
const bool has_hooks = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// ------------------------------------------------------------------ operations

// Runs an operation on copies on the CPU, after checking its arguments as a GPU would.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    const auto check = [&](const at::Tensor& tensor) {
      // A GPU takes numbers from the CPU, and indices.
      TORCH_CHECK(
          !tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0 || arguments[i].name() == "indices",
          "Expected all tensors to be on the same device, but ", arguments[i].name(), " is on the CPU (in ",
          op.schema().operator_name(), ")");
    };
    if (value.isTensor()) {
      check(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        check(tensor);
      }
    } else if (value.isGenerator() || (value.isNone() && arguments[i].type()->str() == "Generator?")) {
      const at::Generator generator = value.isNone() ? default_generator() : value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == kDevice, "Expected a 'standin' device type for generator but found '",
          generator.device().type(), "'");
      value = generator.get<DeviceGenerator>()->cpu;
    }
  }
  at::native::cpu_fallback(op, stack);
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

// A tensor of the CPU over the same memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.dtype());
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  if (self.numel()) {
    on_cpu(target).copy_(on_cpu(self));
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

// The CPU's kernel would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool>) {
  const at::Tensor kept = at::empty_like(input).bernoulli_(1 - p);
  return {input * kept / (1 - p), kept.to(at::kBool)};
}

void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto on_cpu = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_on_cpu(on_cpu, stack);
}

// GPUs have histograms of integers, which mixtures of experts use; the CPU has not.
at::Tensor histogram(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  return self.cpu().to(at::kFloat).histc(bins, min, max).to(self.device(), self.scalar_type());
}

int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("native_dropout", dropout);
  m.impl("histc", histogram);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("default_generator", &default_generator);
  m.def("num_waits", [] { return num_waits.load(); });
  m.def("synchronize", [] { num_waits++; });
}

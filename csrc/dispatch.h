// Which instruction sets run here.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace qwill {

std::vector<const Kernels*> available_kernels();  // best first
const Kernels& kernels(const std::string& isa);   // "" is the best one; throws std::invalid_argument listing the names

}  // namespace qwill

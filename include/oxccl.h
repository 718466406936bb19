/* oxccl.h: what OxCCL offers beyond nccl.h. Printed from src/capi; do not edit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#ifndef OXCCL_H
#define OXCCL_H

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* Product version, e.g. "0.1.0". */
const char *oxcclVersion(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OXCCL_H */

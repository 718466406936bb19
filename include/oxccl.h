/* oxccl.h: what OxCCL offers beyond nccl.h. Printed from src/capi; do not edit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#ifndef OXCCL_H
#define OXCCL_H

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* Version of OxCCL, such as "0.1.0". A program that does not find this function (dlsym) runs with another NCCL. */
const char *oxcclVersion(void);

/* The file from which this library was loaded; empty where the loader does not tell. */
const char *oxcclLibraryPath(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OXCCL_H */

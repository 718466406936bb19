//! What each rank and block does, as plain data: types and operations, fingerprints, the choice of protocol
//! and grid.
//!
//! Nothing here touches a GPU or the system. Every choice depends on values that are equal on all ranks, so
//! all ranks make the same one.

pub mod messages;
pub mod tuning;

/// The element types, by their numbers in nccl.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8E4M3 = 10,
    Float8E5M2 = 11,
}

impl DataType {
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8E4M3,
        DataType::Float8E5M2,
    ];

    pub fn from_raw(raw: i32) -> Option<DataType> {
        DataType::ALL.get(usize::try_from(raw).ok()?).copied()
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8E4M3 | DataType::Float8E5M2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    pub fn is_float8(self) -> bool {
        matches!(self, DataType::Float8E4M3 | DataType::Float8E5M2)
    }

    pub fn is_integer(self) -> bool {
        (self as u32) < DataType::Float16 as u32
    }

    pub fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "ncclInt8",
            DataType::Uint8 => "ncclUint8",
            DataType::Int32 => "ncclInt32",
            DataType::Uint32 => "ncclUint32",
            DataType::Int64 => "ncclInt64",
            DataType::Uint64 => "ncclUint64",
            DataType::Float16 => "ncclFloat16",
            DataType::Float32 => "ncclFloat32",
            DataType::Float64 => "ncclFloat64",
            DataType::Bfloat16 => "ncclBfloat16",
            DataType::Float8E4M3 => "ncclFloat8e4m3",
            DataType::Float8E5M2 => "ncclFloat8e5m2",
        }
    }
}

/// The reductions, by the numbers that kernels and fingerprints use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reduction {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
    PreMulSum = 5,
}

impl Reduction {
    pub const BUILTIN: [Reduction; 5] =
        [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::Avg];

    /// The builtin with this number in nccl.h.
    pub fn from_raw(raw: i32) -> Option<Reduction> {
        Reduction::BUILTIN.get(usize::try_from(raw).ok()?).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "ncclSum",
            Reduction::Prod => "ncclProd",
            Reduction::Max => "ncclMax",
            Reduction::Min => "ncclMin",
            Reduction::Avg => "ncclAvg",
            Reduction::PreMulSum => "a pre-multiplied sum",
        }
    }
}

/// The collectives, in the numbers that kernels and fingerprints use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    AllReduce = 0,
    Broadcast = 1,
    Reduce = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AllToAll = 5,
    Gather = 6,
    Scatter = 7,
}

impl Function {
    pub const ALL: [Function; 8] = [
        Function::AllReduce,
        Function::Broadcast,
        Function::Reduce,
        Function::AllGather,
        Function::ReduceScatter,
        Function::AllToAll,
        Function::Gather,
        Function::Scatter,
    ];

    pub fn reduces(self) -> bool {
        matches!(self, Function::AllReduce | Function::Reduce | Function::ReduceScatter)
    }

    pub fn has_root(self) -> bool {
        matches!(self, Function::Broadcast | Function::Reduce | Function::Gather | Function::Scatter)
    }

    pub fn name(self) -> &'static str {
        match self {
            Function::AllReduce => "ncclAllReduce",
            Function::Broadcast => "ncclBroadcast",
            Function::Reduce => "ncclReduce",
            Function::AllGather => "ncclAllGather",
            Function::ReduceScatter => "ncclReduceScatter",
            Function::AllToAll => "ncclAlltoAll",
            Function::Gather => "ncclGather",
            Function::Scatter => "ncclScatter",
        }
    }
}

/// A call as its fingerprint tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    pub function: Function,
    pub datatype: DataType,
    pub reduction: Reduction,
    pub root: u32,
    pub count: u64,
}

/// Bits of a fingerprint that hold the count; larger counts and roots from `1 << ROOT_BITS` on share
/// fingerprints.
const COUNT_BITS: u32 = 40;
const ROOT_BITS: u32 = 12;

impl Signature {
    /// All of the call in 64 bits, so that the side that finds a difference can say what the other side
    /// called.
    pub fn fingerprint(self) -> u64 {
        let count = self.count & ((1 << COUNT_BITS) - 1);
        let root = u64::from(self.root) & ((1 << ROOT_BITS) - 1);
        count
            | root << COUNT_BITS
            | u64::from(self.reduction as u32) << (COUNT_BITS + ROOT_BITS)
            | u64::from(self.datatype as u32) << (COUNT_BITS + ROOT_BITS + 4)
            | u64::from(self.function as u32) << (COUNT_BITS + ROOT_BITS + 8)
    }

    /// The call behind a fingerprint, as part of a sentence.
    pub fn describe(fingerprint: u64) -> String {
        let field = |shift: u32, bits: u32| (fingerprint >> shift) & ((1 << bits) - 1);
        let count = field(0, COUNT_BITS);
        let root = field(COUNT_BITS, ROOT_BITS);
        let reduction = field(COUNT_BITS + ROOT_BITS, 4) as usize;
        let datatype = DataType::from_raw(field(COUNT_BITS + ROOT_BITS + 4, 4) as i32);
        let function = Function::ALL.get(field(COUNT_BITS + ROOT_BITS + 8, 4) as usize);
        let (Some(function), Some(datatype)) = (function, datatype) else {
            return format!("an unknown operation ({fingerprint:#x})");
        };
        let mut text = format!("{}(count {count}, {}", function.name(), datatype.name());
        if function.reduces() {
            let reduction = Reduction::BUILTIN.get(reduction).copied().unwrap_or(Reduction::PreMulSum);
            text += &format!(", {}", reduction.name());
        }
        if function.has_root() {
            text += &format!(", root {root}");
        }
        text + ")"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_differ_in_every_argument_and_tell_it() {
        let base = Signature {
            function: Function::Reduce,
            datatype: DataType::Float32,
            reduction: Reduction::Max,
            root: 3,
            count: 1000,
        };
        let others = [
            Signature { function: Function::AllReduce, ..base },
            Signature { datatype: DataType::Int32, ..base },
            Signature { reduction: Reduction::Sum, ..base },
            Signature { root: 2, ..base },
            Signature { count: 1001, ..base },
            Signature { count: 1 << 33, ..base },
        ];
        for other in others {
            assert_ne!(other.fingerprint(), base.fingerprint(), "{other:?}");
        }
        assert_eq!(
            Signature::describe(base.fingerprint()),
            "ncclReduce(count 1000, ncclFloat32, ncclMax, root 3)"
        );
    }
}

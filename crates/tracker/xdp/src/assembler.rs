//! Writes instructions of eBPF one after another, and resolves the labels that they jump to.

/// An instruction as the kernel reads it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// The destination in the low half, the source in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. A call takes `R1` to `R5`, loses them, and leaves its result in `R0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
/// The end of the stack.
pub(crate) const STACK: Register = Register(10);

/// A second operand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand {
    Register(Register),
    Number(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl Operand {
    /// Returns the bit of the code for the kind, the source register, and the number.
    const fn parts(self) -> (u8, u8, i32) {
        match self {
            Self::Register(Register(source)) => (0x08, source, 0),
            Self::Number(number) => (0, 0, number),
        }
    }
}

/// The bytes of a load or a store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Width {
    Byte = 0x10,
    Two = 0x08,
    Four = 0x00,
    Eight = 0x18,
}

/// The condition of a jump, between unsigned numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum If {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// A place that jumps lead to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label(usize);

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    /// The instruction at each label, once it is placed.
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, Register(to): Register, source: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to | source << 4, offset, immediate });
    }

    fn compute(&mut self, operation: u8, to: Register, by: Operand) {
        let (which, source, number) = by.parts();
        self.push(0x07 | operation | which, to, source, 0, number);
    }

    pub(crate) fn set(&mut self, to: Register, value: impl Into<Operand>) {
        self.compute(0xb0, to, value.into());
    }

    pub(crate) fn add(&mut self, to: Register, value: impl Into<Operand>) {
        self.compute(0x00, to, value.into());
    }

    pub(crate) fn divide(&mut self, to: Register, by: i32) {
        self.compute(0x30, to, by.into());
    }

    pub(crate) fn or(&mut self, to: Register, value: impl Into<Operand>) {
        self.compute(0x40, to, value.into());
    }

    pub(crate) fn and(&mut self, to: Register, value: impl Into<Operand>) {
        self.compute(0x50, to, value.into());
    }

    pub(crate) fn xor(&mut self, to: Register, value: impl Into<Operand>) {
        self.compute(0xa0, to, value.into());
    }

    pub(crate) fn shift_left(&mut self, to: Register, bits: i32) {
        self.compute(0x60, to, bits.into());
    }

    pub(crate) fn shift_right(&mut self, to: Register, bits: i32) {
        self.compute(0x70, to, bits.into());
    }

    /// Rotates all 64 bits to the left; `spare` is lost.
    pub(crate) fn rotate_left(&mut self, to: Register, bits: i32, spare: Register) {
        self.set(spare, to);
        self.shift_right(spare, 64 - bits);
        self.shift_left(to, bits);
        self.or(to, spare);
    }

    /// Converts the low `bits` from network order to the machine's order or back, and clears the others.
    pub(crate) fn swap(&mut self, to: Register, bits: i32) {
        self.push(0xdc, to, 0, 0, bits);
    }

    pub(crate) fn load(&mut self, width: Width, to: Register, Register(base): Register, offset: i16) {
        self.push(0x61 | width as u8, to, base, offset, 0);
    }

    pub(crate) fn store(&mut self, width: Width, base: Register, offset: i16, Register(from): Register) {
        self.push(0x63 | width as u8, base, from, offset, 0);
    }

    fn wide(&mut self, to: Register, kind: u8, low: i32, high: i32) {
        self.push(0x18, to, kind, 0, low);
        self.push(0, R0, 0, 0, high);
    }

    pub(crate) fn set_wide(&mut self, to: Register, value: u64) {
        self.wide(to, 0, value as u32 as i32, (value >> 32) as i32);
    }

    /// Sets a register to a map, for calls.
    pub(crate) fn set_map(&mut self, to: Register, map: i32) {
        self.wide(to, 1, map, 0);
    }

    /// Sets a register to the address of the first value of an array.
    pub(crate) fn set_value_of(&mut self, to: Register, array: i32) {
        self.wide(to, 2, array, 0);
    }

    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places a label before the next instruction.
    pub(crate) fn here(&mut self, Label(label): Label) {
        let before = self.places[label].replace(self.code.len());
        debug_assert!(before.is_none(), "a label is at one place");
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, R0, 0, 0, 0);
    }

    /// Jumps by a comparison: of all 64 bits with a register, or of the low 32 bits with a number.
    pub(crate) fn jump_if(&mut self, left: Register, condition: If, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.code.len(), to));
        let (which, source, number) = right.into().parts();
        let class = if which == 0 { 0x06 } else { 0x05 };
        self.push(class | condition as u8 | which, left, source, 0, number);
    }

    /// Jumps if the pointer that a call has returned is null.
    pub(crate) fn jump_if_none(&mut self, pointer: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05 | If::Equal as u8, pointer, 0, 0, 0);
    }

    /// Calls a function of the kernel by its number.
    pub(crate) fn call(&mut self, function: i32) {
        self.push(0x85, R0, 0, 0, function);
    }

    pub(crate) fn exit(&mut self) {
        self.push(0x95, R0, 0, 0, 0);
    }

    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, Label(label)) in self.jumps {
            let to = self.places[label].expect("every label is placed");
            let distance = to as isize - at as isize - 1;
            self.code[at].offset = i16::try_from(distance).expect("programs are short");
        }
        self.code
    }
}

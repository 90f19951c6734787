//! The interface to the server: its functions, its allocator, the data type and the entry point. All unsafe
//! code of the module.
//!
//! The functions are those of `redismodule.h` of Redis 7, which Valkey has under the same names. The server
//! gives each by its name, so that neither its header nor a generator is needed.
#![expect(unsafe_code, reason = "the server calls through C functions and pointers")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::{CStr, CString, c_char, c_int, c_longlong, c_void},
    marker::PhantomData,
    panic::{self, AssertUnwindSafe},
    ptr, slice,
    sync::OnceLock,
};

use crate::{
    commands::{COMMANDS, Command, Refused, Reply},
    shard::Shard,
    stored::{Unreadable, VERSION},
};

const OK: c_int = 0;
const ERROR: c_int = 1;

#[repr(C)]
pub(crate) struct Opaque([u8; 0]);

type Ptr = *mut Opaque;

macro_rules! api {
    ($($name:ident: $c_name:literal, fn($($argument:ty),* $(, ..$variadic:tt)?) $(-> $returned:ty)?;)*) => {
        /// Functions of the server.
        struct Api {
            $($name: api!(@type ($($argument),*) $($variadic)? $(-> $returned)?),)*
        }

        impl Api {
            /// SAFETY: `get` is the server's `GetApi`.
            unsafe fn get(get: GetApi) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let mut found: *mut c_void = ptr::null_mut();
                        // SAFETY: the server writes a pointer, or nothing.
                        unsafe { get($c_name.as_ptr(), (&raw mut found).cast()) };
                        if found.is_null() {
                            return None;
                        }
                        // SAFETY: under this name the server has a function of this type.
                        unsafe { std::mem::transmute::<*mut c_void, api!(@type ($($argument),*) $($variadic)? $(-> $returned)?)>(found) }
                    },)*
                })
            }
        }
    };
    (@type ($($argument:ty),*) $(-> $returned:ty)?) => {
        unsafe extern "C" fn($($argument),*) $(-> $returned)?
    };
    (@type ($($argument:ty),*) more $(-> $returned:ty)?) => {
        unsafe extern "C" fn($($argument),*, ...) $(-> $returned)?
    };
}

type GetApi = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
type CommandFunction = unsafe extern "C" fn(Ptr, *mut Ptr, c_int) -> c_int;

api! {
    alloc: c"RedisModule_Alloc", fn(usize) -> *mut c_void;
    calloc: c"RedisModule_Calloc", fn(usize, usize) -> *mut c_void;
    free: c"RedisModule_Free", fn(*mut c_void);
    set_module_attribs: c"RedisModule_SetModuleAttribs", fn(Ptr, *const c_char, c_int, c_int);
    is_module_name_busy: c"RedisModule_IsModuleNameBusy", fn(*const c_char) -> c_int;
    set_module_options: c"RedisModule_SetModuleOptions", fn(Ptr, c_int);
    create_command: c"RedisModule_CreateCommand",
        fn(Ptr, *const c_char, CommandFunction, *const c_char, c_int, c_int, c_int) -> c_int;
    create_data_type: c"RedisModule_CreateDataType", fn(Ptr, *const c_char, c_int, *const TypeMethods) -> Ptr;
    open_key: c"RedisModule_OpenKey", fn(Ptr, Ptr, c_int) -> Ptr;
    close_key: c"RedisModule_CloseKey", fn(Ptr);
    key_type: c"RedisModule_KeyType", fn(Ptr) -> c_int;
    delete_key: c"RedisModule_DeleteKey", fn(Ptr) -> c_int;
    type_of: c"RedisModule_ModuleTypeGetType", fn(Ptr) -> Ptr;
    value_of: c"RedisModule_ModuleTypeGetValue", fn(Ptr) -> *mut c_void;
    set_value: c"RedisModule_ModuleTypeSetValue", fn(Ptr, Ptr, *mut c_void) -> c_int;
    string_ptr_len: c"RedisModule_StringPtrLen", fn(Ptr, *mut usize) -> *const u8;
    create_string: c"RedisModule_CreateString", fn(Ptr, *const u8, usize) -> Ptr;
    free_string: c"RedisModule_FreeString", fn(Ptr, Ptr);
    reply_with_string_buffer: c"RedisModule_ReplyWithStringBuffer", fn(Ptr, *const u8, usize) -> c_int;
    reply_with_long_long: c"RedisModule_ReplyWithLongLong", fn(Ptr, c_longlong) -> c_int;
    reply_with_null: c"RedisModule_ReplyWithNull", fn(Ptr) -> c_int;
    reply_with_error: c"RedisModule_ReplyWithError", fn(Ptr, *const c_char) -> c_int;
    replicate: c"RedisModule_Replicate", fn(Ptr, *const c_char, *const c_char, ..more) -> c_int;
    get_context_flags: c"RedisModule_GetContextFlags", fn(Ptr) -> c_int;
    milliseconds: c"RedisModule_Milliseconds", fn() -> c_longlong;
    log: c"RedisModule_Log", fn(Ptr, *const c_char, *const c_char, ..more);
    log_io_error: c"RedisModule_LogIOError", fn(Ptr, *const c_char, *const c_char, ..more);
    is_io_error: c"RedisModule_IsIOError", fn(Ptr) -> c_int;
    save_string_buffer: c"RedisModule_SaveStringBuffer", fn(Ptr, *const u8, usize);
    load_string_buffer: c"RedisModule_LoadStringBuffer", fn(Ptr, *mut usize) -> *mut u8;
    emit_aof: c"RedisModule_EmitAOF", fn(Ptr, *const c_char, *const c_char, ..more);
}

/// `RedisModuleTypeMethods`, version 3.
#[repr(C)]
struct TypeMethods {
    version: u64,
    rdb_load: unsafe extern "C" fn(Ptr, c_int) -> *mut c_void,
    rdb_save: unsafe extern "C" fn(Ptr, *mut c_void),
    aof_rewrite: unsafe extern "C" fn(Ptr, Ptr, *mut c_void),
    mem_usage: unsafe extern "C" fn(*const c_void) -> usize,
    digest: Option<unsafe extern "C" fn(Ptr, *mut c_void)>,
    free: unsafe extern "C" fn(*mut c_void),
    aux_load: Option<unsafe extern "C" fn(Ptr, c_int, c_int) -> c_int>,
    aux_save: Option<unsafe extern "C" fn(Ptr, c_int)>,
    aux_save_triggers: c_int,
    free_effort: unsafe extern "C" fn(Ptr, *const c_void) -> usize,
    unlink: Option<unsafe extern "C" fn(Ptr, *const c_void)>,
    copy: unsafe extern "C" fn(Ptr, Ptr, *const c_void) -> *mut c_void,
    defrag: Option<unsafe extern "C" fn(Ptr, Ptr, *mut *mut c_void) -> c_int>,
}

static API: OnceLock<Api> = OnceLock::new();
static TYPE: OnceLock<Type> = OnceLock::new();

/// The data type, as the server knows it.
struct Type(Ptr);

// SAFETY: the server's own pointer, which it only compares.
unsafe impl Send for Type {}
// SAFETY: as above.
unsafe impl Sync for Type {}

fn api() -> &'static Api {
    API.get().expect("a module is loaded before it is called")
}

fn data_type() -> Ptr {
    TYPE.get().expect("a module is loaded before it is called").0
}

/// The server's allocator, so that the server counts the module's memory. Before the module is loaded, and in
/// its tests, the allocator of the system.
struct ServerAllocator;

#[global_allocator]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The largest alignment of the server's allocator. It aligns pieces if their size is a multiple of it.
const ALIGNMENT: usize = 16;

// SAFETY: memory is the server's, of the requested size. Up to `ALIGNMENT`, a size that is a multiple of the
// alignment is aligned to it: the servers' jemalloc has classes of 8 bytes more each. For a larger alignment,
// the first aligned address in a longer piece is given, and the address of that piece stands before it.
// Memory that was taken before the server's functions are known is not freed after: the entry point keeps
// none of it.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(api) = API.get() else {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        };
        if layout.align() <= ALIGNMENT {
            // SAFETY: the server's function takes any size.
            return unsafe { (api.alloc)(layout.pad_to_align().size().max(1)).cast() };
        }
        // SAFETY: as above.
        let piece: *mut u8 = unsafe { (api.alloc)(layout.pad_to_align().size() + layout.align()).cast() };
        // The piece is aligned to `ALIGNMENT`, so at least as much lies before.
        let gap = layout.align() - piece.addr() % layout.align();
        // SAFETY: the gap is inside of the piece, and has room for a pointer.
        unsafe {
            let given = piece.add(gap);
            given.cast::<*mut u8>().sub(1).write(piece);
            given
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(api) = API.get()
            && layout.align() <= ALIGNMENT
        {
            // SAFETY: the server's function takes any size.
            return unsafe { (api.calloc)(1, layout.pad_to_align().size().max(1)).cast() };
        }
        // SAFETY: the caller's promise; memory that was given has the size of the layout.
        unsafe {
            let given = self.alloc(layout);
            if !given.is_null() {
                given.write_bytes(0, layout.size());
            }
            given
        }
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        let Some(api) = API.get() else {
            // SAFETY: the caller's promise.
            return unsafe { System.dealloc(given, layout) };
        };
        let piece = match layout.align() {
            ..=ALIGNMENT => given,
            // SAFETY: as `alloc` has left it.
            _ => unsafe { given.cast::<*mut u8>().sub(1).read() },
        };
        // SAFETY: `alloc` has taken it from the server.
        unsafe { (api.free)(piece.cast()) };
    }
}

/// A call of a command.
pub(crate) struct Call<'a> {
    context: Ptr,
    arguments: &'a [Ptr],
    command: &'static Command,
}

/// A word of a command for replicas.
#[derive(Clone, Copy)]
pub(crate) enum Word<'a> {
    /// One of the call's own.
    Same(Ptr),
    Bytes(&'a [u8]),
}

/// The key holds a value of another type.
#[derive(Debug)]
pub(crate) struct WrongType;

impl Call<'_> {
    /// The number of arguments, without the name of the command.
    pub(crate) fn arguments(&self) -> usize {
        self.arguments.len() - 1
    }

    pub(crate) fn argument(&self, nth: usize) -> Result<&[u8], Refused> {
        let string = *self.arguments.get(nth + 1).ok_or(Refused::Arguments)?;
        let mut len = 0;
        // SAFETY: the server's strings live and do not change until the command returns.
        unsafe {
            let bytes = (api().string_ptr_len)(string, &raw mut len);
            Ok(if len == 0 { &[] } else { slice::from_raw_parts(bytes, len) })
        }
    }

    /// An argument as a word. Panics if there is none.
    pub(crate) fn word(&self, nth: usize) -> Word<'_> {
        Word::Same(self.arguments[nth + 1])
    }

    pub(crate) fn name(&self) -> &'static CStr {
        self.command.name
    }

    /// Opens the key that is named by an argument.
    pub(crate) fn key_at<'a>(&'a self, name: Word<'a>, writes: bool) -> Result<Key<'a>, WrongType> {
        const READ: c_int = 1;
        const WRITE: c_int = 2;
        const EMPTY: c_int = 0;

        let Word::Same(string) = name else { return Err(WrongType) };
        // SAFETY: context and string are the server's, and live until the command returns.
        let key = unsafe { (api().open_key)(self.context, string, if writes { READ | WRITE } else { READ }) };
        let key = Key { key, name, of: PhantomData };
        // SAFETY: the key is open. The server takes a null pointer for a key that is not there.
        let is_other =
            unsafe { (api().key_type)(key.key) != EMPTY && !ptr::eq((api().type_of)(key.key), data_type()) };
        if is_other { Err(WrongType) } else { Ok(key) }
    }

    /// The server's clock, in seconds since the epoch.
    pub(crate) fn clock(&self) -> u32 {
        // SAFETY: the function only reads.
        let milliseconds = unsafe { (api().milliseconds)() };
        u32::try_from(milliseconds / 1000).unwrap_or(u32::MAX)
    }

    /// Whether the command is one that this server's master, or its file of commands, has already done.
    pub(crate) fn is_of_master(&self) -> bool {
        const REPLICATED: c_int = 1 << 12;
        const LOADING: c_int = 1 << 13;

        // SAFETY: the context is the server's.
        let flags = unsafe { (api().get_context_flags)(self.context) };
        flags & (REPLICATED | LOADING) != 0
    }

    /// Lets replicas, and the file of commands, do this command.
    pub(crate) fn replicate(&self, name: &CStr, words: &[Word<'_>]) {
        let mut made = Vec::with_capacity(words.len());
        let strings: Vec<Ptr> = words
            .iter()
            .map(|word| match word {
                Word::Same(string) => *string,
                Word::Bytes(bytes) => {
                    // SAFETY: the server copies the bytes.
                    let string =
                        unsafe { (api().create_string)(ptr::null_mut(), bytes.as_ptr(), bytes.len()) };
                    made.push(string);
                    string
                }
            })
            .collect();
        // SAFETY: `v` is a list of strings and its length. The server keeps the strings that it needs.
        unsafe {
            (api().replicate)(self.context, name.as_ptr(), c"v".as_ptr(), strings.as_ptr(), strings.len());
            for string in made {
                (api().free_string)(ptr::null_mut(), string);
            }
        }
    }

    fn reply(&self, reply: Result<Reply, Refused>) {
        let context = self.context;
        // SAFETY: the context is the server's, which copies the arguments.
        unsafe {
            match reply {
                Ok(Reply::Nothing) => (api().reply_with_null)(context),
                Ok(Reply::Done) => (api().reply_with_long_long)(context, 1),
                Ok(Reply::Bytes(bytes)) => {
                    (api().reply_with_string_buffer)(context, bytes.as_ptr(), bytes.len())
                }
                Err(refused) => {
                    let text = CString::new(refused.to_string()).unwrap_or_default();
                    (api().reply_with_error)(context, text.as_ptr())
                }
            }
        };
    }
}

/// An open key. It is closed when it is dropped.
pub(crate) struct Key<'a> {
    /// Null if it is not there, and was opened to be read.
    key: Ptr,
    name: Word<'a>,
    of: PhantomData<&'a Shard>,
}

impl<'a> Key<'a> {
    pub(crate) fn name(&self) -> Word<'a> {
        self.name
    }

    /// Its value.
    pub(crate) fn shard(&mut self) -> Option<&mut Shard> {
        // SAFETY: the value of a key of this type was made by `Box::into_raw`. Commands run one after
        // another, and this key is borrowed.
        unsafe { (api().value_of)(self.key).cast::<Shard>().as_mut() }
    }

    /// Replaces its value. Does nothing to a key that was opened to be read.
    pub(crate) fn put(&mut self, shard: Shard) {
        let value = Box::into_raw(Box::new(shard)).cast();
        // SAFETY: the key takes the value, and frees the one before; if not, the value is still ours.
        unsafe {
            if (api().set_value)(self.key, data_type(), value) != OK {
                free(value);
            }
        }
    }

    pub(crate) fn delete(&mut self) {
        // SAFETY: the key is open.
        unsafe { (api().delete_key)(self.key) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: the key is open, and not used again.
        unsafe { (api().close_key)(self.key) };
    }
}

/// Runs `work`, and returns the error to reply if it panics.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, &'static CStr> {
    panic::catch_unwind(AssertUnwindSafe(work))
        .map_err(|_| c"ERR the module swarmkeep has a defect: its panic is in the server's output")
}

/// The function of the `N`th command.
unsafe extern "C" fn command<const N: usize>(context: Ptr, arguments: *mut Ptr, count: c_int) -> c_int {
    // SAFETY: as many arguments are the server's, and live until the command returns.
    let arguments = unsafe { slice::from_raw_parts(arguments, count.unsigned_abs() as usize) };
    let command = &COMMANDS[N];
    let call = Call { context, arguments, command };
    match caught(|| (command.run)(&call)) {
        Ok(reply) => call.reply(reply),
        // SAFETY: the context is the server's.
        Err(text) => unsafe {
            (api().reply_with_error)(context, text.as_ptr());
        },
    }
    OK
}

/// All functions, by the number of their command.
const FUNCTIONS: [CommandFunction; 13] = [
    command::<0>,
    command::<1>,
    command::<2>,
    command::<3>,
    command::<4>,
    command::<5>,
    command::<6>,
    command::<7>,
    command::<8>,
    command::<9>,
    command::<10>,
    command::<11>,
    command::<12>,
];
const _: () = assert!(FUNCTIONS.len() == COMMANDS.len());

/// It is freed when it is dropped.
struct ServerString(*mut u8, usize);

impl AsRef<[u8]> for ServerString {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the server gave this number of bytes.
        unsafe { slice::from_raw_parts(self.0, self.1) }
    }
}

impl Drop for ServerString {
    fn drop(&mut self) {
        // SAFETY: the server gave it to be freed so.
        unsafe { (api().free)(self.0.cast()) };
    }
}

unsafe extern "C" fn rdb_load(io: Ptr, _version: c_int) -> *mut c_void {
    let next = || {
        let mut len = 0;
        // SAFETY: the server is loading.
        let bytes = unsafe { (api().load_string_buffer)(io, &raw mut len) };
        // SAFETY: as above.
        if bytes.is_null() || unsafe { (api().is_io_error)(io) } != 0 {
            return Err(Unreadable::Parts);
        }
        let loaded = ServerString(bytes, len);
        // The last part is an empty one.
        Ok((len > 0).then_some(loaded))
    };
    let text = match caught(|| Shard::read(next)) {
        Ok(Ok(shard)) => return Box::into_raw(Box::new(shard)).cast(),
        Ok(Err(unreadable)) => CString::new(unreadable.to_string()).unwrap_or_default(),
        Err(text) => text.to_owned(),
    };
    // SAFETY: the format takes one string.
    unsafe { (api().log_io_error)(io, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
    ptr::null_mut()
}

unsafe extern "C" fn rdb_save(io: Ptr, value: *mut c_void) {
    // SAFETY: the value is of this type.
    let shard = unsafe { &*value.cast::<Shard>() };
    // SAFETY: the server is saving, and copies the bytes.
    let save = |part: &[u8]| unsafe { (api().save_string_buffer)(io, part.as_ptr(), part.len()) };
    if let Err(text) = caught(|| shard.write(save)) {
        not_saved(io, text);
    }
    save(&[]);
}

unsafe extern "C" fn aof_rewrite(io: Ptr, key: Ptr, value: *mut c_void) {
    // SAFETY: the value is of this type.
    let shard = unsafe { &*value.cast::<Shard>() };
    let mut parts = Vec::new();
    let written = caught(|| {
        shard.write(|part| {
            parts.extend((part.len() as u32).to_le_bytes());
            parts.extend(part);
        });
    });
    let caller = crate::request::Caller::of(shard);
    // SAFETY: two strings of bytes around one of the server's.
    unsafe {
        match written {
            Ok(()) => (api().emit_aof)(
                io,
                c"swarmkeep.load".as_ptr(),
                c"bsb".as_ptr(),
                caller.as_ptr(),
                caller.len(),
                key,
                parts.as_ptr(),
                parts.len(),
            ),
            Err(text) => not_saved(io, text),
        }
    }
}

/// A shard could not be saved. The process that saves ends without a file, unless it is the server.
fn not_saved(io: Ptr, text: &CStr) {
    const IS_CHILD: c_int = 1 << 20;

    // SAFETY: the format takes one string; without a context, the flags are those of the process.
    let flags = unsafe {
        (api().log_io_error)(io, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr());
        (api().get_context_flags)(ptr::null_mut())
    };
    if flags & IS_CHILD != 0 {
        std::process::abort();
    }
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the value is of this type.
    let shard = unsafe { &*value.cast::<Shard>() };
    caught(|| shard.bytes() as usize).unwrap_or_default()
}

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the server has no other pointer to the value.
    let shard = unsafe { Box::from_raw(value.cast::<Shard>()) };
    let _ = caught(|| drop(shard));
}

unsafe extern "C" fn free_effort(_key: Ptr, value: *const c_void) -> usize {
    // SAFETY: the value is of this type.
    let shard = unsafe { &*value.cast::<Shard>() };
    caught(|| shard.pieces()).unwrap_or(1)
}

unsafe extern "C" fn copy(_from: Ptr, _to: Ptr, value: *const c_void) -> *mut c_void {
    // SAFETY: the value is of this type.
    let shard = unsafe { &*value.cast::<Shard>() };
    match caught(|| shard.copied()) {
        Ok(Some(copied)) => Box::into_raw(Box::new(copied)).cast(),
        _ => ptr::null_mut(),
    }
}

/// Puts a command in the categories `@read` or `@write`, where the server has categories for modules: Redis
/// 7.2 and Valkey.
///
/// # Safety
/// `get` is the server's `GetApi`, and it is loading the module.
unsafe fn put_in_categories(get: GetApi, context: Ptr, command: &Command) {
    type GetCommand = unsafe extern "C" fn(Ptr, *const c_char) -> Ptr;
    type SetCategories = unsafe extern "C" fn(Ptr, *const c_char) -> c_int;

    let (mut find, mut set): (Option<GetCommand>, Option<SetCategories>) = (None, None);
    // SAFETY: under these names the server has functions of these types, or nothing, which stays `None`.
    unsafe {
        get(c"RedisModule_GetCommand".as_ptr(), (&raw mut find).cast());
        get(c"RedisModule_SetCommandACLCategories".as_ptr(), (&raw mut set).cast());
        if let (Some(find), Some(set)) = (find, set) {
            let categories = if command.reads() { c"read" } else { c"write" };
            set(find(context, command.name.as_ptr()), categories.as_ptr());
        }
    }
}

/// The entry point: the server calls it when it loads the module.
///
/// # Safety
/// Only the server calls it.
#[unsafe(export_name = "RedisModule_OnLoad")]
unsafe extern "C" fn on_load(context: Ptr, _arguments: *mut Ptr, _count: c_int) -> c_int {
    const NAME: &CStr = c"swarmkeep";
    const INTERFACE: c_int = 1;
    const HANDLES_IO_ERRORS: c_int = 1 << 0;
    const HANDLES_ASYNC_LOAD: c_int = 1 << 2;
    /// Of Valkey only, from 9 on.
    const HANDLES_SLOT_MIGRATION: c_int = 1 << 5;

    // SAFETY: a context begins with the server's `GetApi`.
    let get = unsafe { *context.cast::<GetApi>() };
    // SAFETY: as above.
    let Some(api) = (unsafe { Api::get(get) }) else { return ERROR };
    let api = API.get_or_init(|| api);
    // SAFETY: pieces go back as they came, and the text lives long enough.
    unsafe {
        let pieces = [(); 8].map(|()| (api.alloc)(ALIGNMENT));
        let is_aligned = pieces.iter().all(|piece| piece.addr() % ALIGNMENT == 0);
        pieces.into_iter().for_each(|piece| (api.free)(piece));
        if !is_aligned {
            let why =
                c"swarmkeep needs an allocator that aligns memory to 16 bytes, as jemalloc and glibc do";
            (api.log)(context, c"warning".as_ptr(), why.as_ptr());
            return ERROR;
        }
    }
    // The packed store's memory too is the server's.
    if !swarmkeep::packed::use_global_allocator() {
        return ERROR;
    }
    let methods = TypeMethods {
        version: 3,
        rdb_load,
        rdb_save,
        aof_rewrite,
        mem_usage,
        digest: None,
        free,
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort,
        unlink: None,
        copy,
        defrag: None,
    };
    // SAFETY: names and methods live long enough: the server copies them.
    unsafe {
        if (api.is_module_name_busy)(NAME.as_ptr()) != 0 {
            return ERROR;
        }
        (api.set_module_attribs)(context, NAME.as_ptr(), VERSION.into(), INTERFACE);
        let mut is_valkey: *mut c_void = ptr::null_mut();
        get(c"ValkeyModule_Alloc".as_ptr(), (&raw mut is_valkey).cast());
        let of_valkey = if is_valkey.is_null() { 0 } else { HANDLES_SLOT_MIGRATION };
        (api.set_module_options)(context, HANDLES_IO_ERRORS | HANDLES_ASYNC_LOAD | of_valkey);
        let created = (api.create_data_type)(context, NAME.as_ptr(), VERSION.into(), &raw const methods);
        if created.is_null() {
            return ERROR;
        }
        let _ = TYPE.set(Type(created));
        for (command, function) in COMMANDS.iter().zip(FUNCTIONS) {
            let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
            // A caller comes first; then keys, each before its request.
            if (api.create_command)(context, name, function, flags, 2, -1, 2) != OK {
                return ERROR;
            }
            put_in_categories(get, context, command);
        }
        (api.log)(context, c"notice".as_ptr(), c"swarmkeep keeps shards of swarms".as_ptr());
    }
    OK
}

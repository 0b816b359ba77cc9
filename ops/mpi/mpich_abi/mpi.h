#ifndef DTRUN_OPS_MPI_MPICH_ABI_MPI_H_
#define DTRUN_OPS_MPI_MPICH_ABI_MPI_H_

// The part of MPI that the MPI backend and its tests use, with the types and values of the MPICH
// ABI. MPICH 3.1 and later, Intel MPI 5 and later, and MVAPICH2 2.0 and later have this ABI
// (libmpich.so.12, libmpi.so.12). So dtrun is built without any of them.

extern "C" {

typedef int MPI_Comm;
typedef int MPI_Group;
typedef int MPI_Request;
typedef int MPI_Datatype;
typedef int MPI_Info;
typedef int MPI_Errhandler;
typedef int MPI_Op;
typedef struct MPI_Status MPI_Status;
typedef struct MPIR_T_cvar_handle_s* MPI_T_cvar_handle;
typedef int MPI_Comm_copy_attr_function(MPI_Comm, int, void*, void*, void*, int*);
typedef int MPI_Comm_delete_attr_function(MPI_Comm, int, void*, void*);

#define MPI_SUCCESS 0
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_COMM_SELF ((MPI_Comm)0x44000001)
#define MPI_COMM_NULL ((MPI_Comm)0x04000000)
#define MPI_GROUP_NULL ((MPI_Group)0x08000000)
#define MPI_REQUEST_NULL ((MPI_Request)0x2c000000)
#define MPI_INFO_NULL ((MPI_Info)0x1c000000)
#define MPI_BYTE ((MPI_Datatype)0x4c00010d)
#define MPI_FLOAT ((MPI_Datatype)0x4c00040a)
#define MPI_SUM ((MPI_Op)0x58000003)
#define MPI_IN_PLACE ((void*)-1)
#define MPI_ERRORS_RETURN ((MPI_Errhandler)0x54000001)
#define MPI_KEYVAL_INVALID 0x24000000
#define MPI_TAG_UB 0x64400001
#define MPI_ANY_SOURCE (-2)
#define MPI_UNDEFINED (-32766)
#define MPI_COMM_TYPE_SHARED 1
#define MPI_MAX_PROCESSOR_NAME 128
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_THREAD_SINGLE 0
#define MPI_THREAD_FUNNELED 1
#define MPI_THREAD_SERIALIZED 2
#define MPI_THREAD_MULTIPLE 3
#define MPI_STATUS_IGNORE ((MPI_Status*)1)
#define MPI_STATUSES_IGNORE ((MPI_Status*)1)
#define MPI_COMM_NULL_COPY_FN ((MPI_Comm_copy_attr_function*)0)
#define MPI_T_CVAR_HANDLE_NULL ((MPI_T_cvar_handle)0)

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided);
int MPI_Initialized(int* flag);
int MPI_Finalize(void);
int MPI_Finalized(int* flag);
int MPI_Abort(MPI_Comm comm, int code);
int MPI_Query_thread(int* provided);
int MPI_Is_thread_main(int* flag);
int MPI_Get_library_version(char* version, int* length);
int MPI_Get_processor_name(char* name, int* length);
int MPI_Error_string(int code, char* text, int* length);

int MPI_Comm_rank(MPI_Comm comm, int* rank);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_group(MPI_Comm comm, MPI_Group* group);
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* duplicate, MPI_Request* request);
int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* part);
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part);
int MPI_Comm_test_inter(MPI_Comm comm, int* flag);
int MPI_Comm_free(MPI_Comm* comm);
int MPI_Intercomm_create(
    MPI_Comm local, int local_leader, MPI_Comm peer, int remote_leader, int tag, MPI_Comm* inter);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Comm_create_keyval(
    MPI_Comm_copy_attr_function* copy, MPI_Comm_delete_attr_function* remove, int* keyval,
    void* extra);
int MPI_Comm_free_keyval(int* keyval);
int MPI_Comm_set_attr(MPI_Comm comm, int keyval, void* value);
int MPI_Comm_get_attr(MPI_Comm comm, int keyval, void* value, int* flag);
int MPI_Comm_delete_attr(MPI_Comm comm, int keyval);
int MPI_Group_translate_ranks(
    MPI_Group from, int count, const int ranks[], MPI_Group to, int translated[]);
int MPI_Group_free(MPI_Group* group);

int MPI_Isend(
    const void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
    MPI_Request* request);
int MPI_Issend(
    const void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
    MPI_Request* request);
int MPI_Irecv(
    void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
    MPI_Request* request);
int MPI_Allreduce(
    const void* input, void* output, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status);
int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[]);
int MPI_Testsome(
    int count, MPI_Request requests[], int* ended, int indices[], MPI_Status statuses[]);
int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status);
int MPI_Request_free(MPI_Request* request);
int MPI_Cancel(MPI_Request* request);

int MPI_T_init_thread(int required, int* provided);
int MPI_T_finalize(void);
int MPI_T_cvar_get_index(const char* name, int* index);
int MPI_T_cvar_handle_alloc(int index, void* object, MPI_T_cvar_handle* handle, int* count);
int MPI_T_cvar_handle_free(MPI_T_cvar_handle* handle);
int MPI_T_cvar_read(MPI_T_cvar_handle handle, void* value);

}  // extern "C"

#endif

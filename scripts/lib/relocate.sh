# shellcheck shell=bash
# Making a folder of programs independent of the machine that built it: the libraries of others come along, and all find each
# other by where they lie. Needs common.sh; `archive_root` is the folder.
#
#   lib/dtrun/            what programs and libraries load besides dtrun's own: oneDNN, hwloc, OpenSSL ...
#   lib/dtrun/c++/        the C++ library, which programs of the archive alone look for there: a user's program that links
#                         lib/libdtrun.so.0 keeps that of its own compiler, which may be newer
#   lib/dtrun/open-mpi/   Open MPI's, which nothing looks for there: whoever has none puts it into LD_LIBRARY_PATH

# The C library's own, which every such system has.
glibc_sonames=" ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 libresolv.so.2 libanl.so.1 "
# What belongs to a machine's driver, or is looked for at run time: a program that cannot start without it is a mistake.
nvidia_sonames='^lib(cuda|cudart|cudnn[a-z_]*|nccl|cublas|cublasLt|nvrtc|nvJitLink|nvidia-[a-z]+)\.so'

is_elf() { [[ $(head -c 4 "$1" | tail -c 3) == ELF ]]; }

elf_files() { # elf_files FOLDER...: below it, links left out
  local file
  while IFS= read -r -d '' file; do
    if is_elf "$file"; then echo "$file"; fi
  done < <(find "$@" -type f -print0)
}

# What the loader of this machine would load with it, a line each: "soname path", "soname not" where it finds none.
loaded_with() { # loaded_with FILE
  env -u LD_LIBRARY_PATH -u LD_PRELOAD ldd "$1" | sed -nE 's,^[ \t]*([^ ]+) => ([^ ]+).*,\1 \2,p'
}

links_mpi() { readelf -d "$1" | grep -q 'NEEDED.*\[libmpi\.so'; }

strip_symbols() { elf_files "$archive_root" | xargs strip --strip-unneeded; }

# Where each looks: first beside itself, then where the libraries of others lie.
point_to_libraries() {
  local file up
  while read -r file; do
    up=$(realpath --relative-to="$(dirname "$file")" "$archive_root/lib")
    case ${file#"$archive_root/"} in
      lib/dtrun/open-mpi/*) set_search "$file" "\$ORIGIN:\$ORIGIN/.." ;;
      lib/dtrun/*) set_search "$file" "\$ORIGIN" ;;
      lib/*) set_search "$file" "\$ORIGIN:\$ORIGIN/dtrun" ;;
      *) set_search "$file" "\$ORIGIN/$up:\$ORIGIN/$up/dtrun:\$ORIGIN/$up/dtrun/c++" ;;
    esac
  done < <(elf_files "$archive_root")
}

set_search() { patchelf --set-rpath "$2" "$1"; } # set_search FILE FOLDERS

# Copies what is loaded from elsewhere. That of Open MPI is what only programs beside Open MPI load.
take_libraries() {
  local file files
  mapfile -t files < <(elf_files "$archive_root")
  for file in "${files[@]}"; do
    if ! links_mpi "$file"; then take_libraries_of "$file" dtrun; fi
  done
  for file in "${files[@]}"; do
    if links_mpi "$file"; then take_libraries_of "$file" dtrun/open-mpi; fi
  done
}

take_libraries_of() { # take_libraries_of FILE FOLDER-OF-LIB
  local soname path folder
  while read -r soname path; do
    if [[ $glibc_sonames == *" $soname "* || $path == "$archive_root"/* ]]; then continue; fi
    if [[ $soname =~ $nvidia_sonames ]]; then die 70 "${1#"$archive_root/"} links $soname; expected it to be loaded at run time"; fi
    [[ $path != not ]] || die 70 "${1#"$archive_root/"} needs $soname, which is not on this machine"
    folder=$archive_root/lib/$2
    case $soname in libstdc++.so.* | libgcc_s.so.*) folder=$archive_root/lib/dtrun/c++ ;; esac
    if [[ -e $archive_root/lib/dtrun/$soname || -e $folder/$soname ]]; then continue; fi
    mkdir -p "$folder"
    install -m 644 "$path" "$folder/$soname"
    take_licence "$path"
  done < <(loaded_with "$1")
}

# The text that comes with the Debian package which the file is of.
take_licence() { # take_licence FILE
  local owner file
  file=$(readlink -f "$1")
  for file in "$file" "${file#/usr}" "/usr$file"; do
    owner=$(dpkg-query -S "$file" 2>/dev/null | sed 's/:.*//') || true
    if [[ -n $owner ]] && copy_licence "$owner"; then return; fi
  done
  complain "no licence was found for $1: add it before you hand the archive on"
}

copy_licence() { # copy_licence PACKAGE
  [[ -e /usr/share/doc/$1/copyright ]] || return 1
  mkdir -p "$archive_root/share/doc/dtrun/licenses"
  install -m 644 "/usr/share/doc/$1/copyright" "$archive_root/share/doc/dtrun/licenses/$1"
}

# Nothing but the C library comes from the system, and no program needs NVIDIA's. (Libraries that users link take the C++
# library of whoever loads them.)
check_independence() {
  local file soname path
  while read -r file; do
    if links_mpi "$file"; then continue; fi
    while read -r soname path; do
      if [[ $glibc_sonames == *" $soname "* || $path == "$archive_root"/* ]]; then continue; fi
      if [[ $file == "$archive_root"/lib/* && $soname =~ ^lib(stdc\+\+|gcc_s)\.so ]]; then continue; fi
      die 70 "${file#"$archive_root/"} would load $soname of this machine ($path)"
    done < <(loaded_with "$file")
  done < <(elf_files "$archive_root")
}

# The version of the C library without which something here does not start: 2.36.
needed_glibc() {
  elf_files "$archive_root" | xargs objdump -T | sed -nE 's/.*\(?GLIBC_([0-9]+\.[0-9]+(\.[0-9]+)?)\)?.*/\1/p' | sort -Vu | tail -n 1
}

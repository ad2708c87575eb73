# What a wheel holds beside the Python modules: libflashkiln.so, the header, which Python reads, and Lua. Lua is linked
# in, hidden, where pkg-config's folder has an archive of position-independent code; else its shared library is carried.
include(CheckCSourceCompiles)

set(library ${FK_LUA_LIBRARY})
string(REGEX REPLACE "[.]so$" ".a" archive "${library}")
if(EXISTS "${archive}")
  set(CMAKE_REQUIRED_FLAGS -fPIC)
  set(CMAKE_REQUIRED_LINK_OPTIONS -shared)
  set(CMAKE_REQUIRED_INCLUDES ${LUA_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${archive} ${CMAKE_DL_LIBS} m)
  check_c_source_compiles("#include <lauxlib.h>\n#include <lualib.h>\nvoid f(void) { luaL_openlibs(luaL_newstate()); }"
                          FK_LUA_ARCHIVE_FITS)
endif()

set(lua PkgConfig::LUA)
if(FK_LUA_ARCHIVE_FITS)
  set(lua ${archive})
elseif(FK_LUA_SONAME) # beside libflashkiln, which opens it by this name
  set(lua)
  target_compile_definitions(fk_gen PRIVATE FK_LUA_SONAME="${FK_LUA_SONAME}")
  file(REAL_PATH ${library} library)
  install(PROGRAMS ${library} DESTINATION flashkiln RENAME ${FK_LUA_SONAME})
endif()

# The notice that goes with Lua, of the very version: lua.h ends with it.
find_file(FK_LUA_H lua.h HINTS ${LUA_INCLUDE_DIRS} REQUIRED)
file(READ ${FK_LUA_H} text)
string(REGEX MATCH "[*] Copyright.*SOFTWARE\\." notice "${text}")
string(REGEX REPLACE "(^|\n)[*] ?" "\\1" notice "${notice}")
file(WRITE ${CMAKE_BINARY_DIR}/LICENSE.lua "Lua ${LUA_VERSION}\n\n${notice}\n")
install(FILES ${CMAKE_BINARY_DIR}/LICENSE.lua DESTINATION ${SKBUILD_METADATA_DIR}/licenses)

foreach(layer gen cache runtime) # no folder of this machine in the library
  target_compile_options(fk_${layer} PRIVATE -ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=.)
endforeach()
add_library(flashkiln SHARED $<TARGET_OBJECTS:fk_gen> $<TARGET_OBJECTS:fk_cache> $<TARGET_OBJECTS:fk_runtime>)
target_link_libraries(flashkiln PRIVATE ${lua} Threads::Threads ${CMAKE_DL_LIBS} m)
target_link_options(flashkiln PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(flashkiln PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS flashkiln LIBRARY DESTINATION flashkiln)
install(FILES include/flashkiln.h DESTINATION flashkiln)

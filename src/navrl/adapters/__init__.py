"""The simulator as other libraries know environments; each module needs its own optional
package.
"""
